//! Tests of the records that waypoints see, and of waypoints' records that other clients see.

use ambit_model::{
    Authentication, DestinationPolicy, GatewayName, HttpPolicy, PolicyKey, RateLimit,
    WaypointDestination, WaypointExtension, WaypointGateway, WaypointRecord, WaypointRecordKey,
    WaypointRecordType, WaypointService,
};

use super::*;

/// Returns the change that publishes a Gateway's records: its own, a service and a policy.
fn publish_gateway_records(gateway: &GatewayName, service: &str) -> Delta {
    let settings = WaypointGateway {
        gateway: gateway.clone(),
        ..WaypointGateway::default()
    };
    let name = NamespacedHostname::new("shop", service);
    let service = WaypointService {
        service: name.clone(),
        ..WaypointService::default()
    };
    let destination = WaypointDestination {
        service: name,
        policy: DestinationPolicy::default(),
        ports: BTreeMap::new(),
        subsets: BTreeMap::new(),
    };
    let key = PolicyKey {
        namespace: "shop".into(),
        name: "p".into(),
    };
    let authentication = Authentication {
        key: key.clone(),
        ..Authentication::default()
    };
    let extension = WaypointExtension {
        namespace: "shop".into(),
        name: "p".into(),
        ..WaypointExtension::default()
    };
    let limit = RateLimit {
        key: key.clone(),
        ..RateLimit::default()
    };
    let policy = HttpPolicy {
        key,
        ..HttpPolicy::default()
    };
    let records: [WaypointRecord; 7] = [
        settings.into(),
        destination.into(),
        service.into(),
        authentication.into(),
        policy.into(),
        limit.into(),
        extension.into(),
    ];
    let changed = |record: WaypointRecord| {
        let key = WaypointRecordKey::new(gateway.clone(), &record);
        (key, Some(Arc::new(record)))
    };
    Delta {
        waypoint_records: records.map(changed).into(),
        ..Delta::default()
    }
}

fn remove_service(gateway: &GatewayName, service: &str) -> Delta {
    let service = WaypointService {
        service: NamespacedHostname::new("shop", service),
        ..WaypointService::default()
    };
    let key = WaypointRecordKey::new(gateway.clone(), &service.into());
    Delta {
        waypoint_records: vec![(key, None)],
        ..Delta::default()
    }
}

fn waypoint_client(gateway: &GatewayName) -> TestClient {
    let client = Client {
        node: ArcStr::new(),
        waypoint: Some(gateway.clone()),
    };
    TestClient {
        session: Session::new(client, 7),
        known: BTreeMap::new(),
    }
}

const WAYPOINT_RESOURCE_TYPES: [ResourceType; 7] = [
    ResourceType::Waypoint(WaypointRecordType::Policy),
    ResourceType::Waypoint(WaypointRecordType::Gateway),
    ResourceType::Waypoint(WaypointRecordType::Service),
    ResourceType::Waypoint(WaypointRecordType::Destination),
    ResourceType::Waypoint(WaypointRecordType::Authentication),
    ResourceType::Waypoint(WaypointRecordType::Extension),
    ResourceType::Waypoint(WaypointRecordType::RateLimit),
];

#[test]
fn waypoint_sees_only_its_own_gateways_records() {
    let own = GatewayName::new("shop", "wp");
    // A Gateway with this one's name as a prefix, and one of the same name in another namespace.
    let others = [
        GatewayName::new("shop", "wp-2"),
        GatewayName::new("shop2", "wp"),
    ];
    let mut store = store(&[
        publish_gateway_records(&own, "a"),
        publish_gateway_records(&others[0], "a"),
        publish_gateway_records(&others[1], "a"),
    ]);
    let mut peer = waypoint_client(&own);
    let mut sent = Vec::new();
    for kind in WAYPOINT_RESOURCE_TYPES {
        for response in peer.send(&first_request(kind), &store) {
            sent.extend(names(&response).into_iter().map(str::to_owned));
            assert_eq!(peer.ack(&response, &store), []);
        }
    }
    assert_eq!(
        sent,
        [
            "shop/wp/shop/p",
            "shop/wp",
            "shop/wp/shop/a",
            "shop/wp/shop/a",
            "shop/wp/shop/p",
            "shop/wp/shop/p",
            "shop/wp/shop/p"
        ]
    );
    for other in &others {
        store.update(&publish_gateway_records(other, "b"));
        store.update(&remove_service(other, "a"));
        assert_eq!(peer.receive_changes(&store), [], "{other}");
    }
    store.update(&publish_gateway_records(&own, "b"));
    store.update(&remove_service(&own, "a"));
    let responses = peer.receive_changes(&store);
    let of = |kind: ResourceType| {
        let mut responses = responses.iter();
        let response = responses.find(|one| one.type_url == kind.type_url());
        response.unwrap()
    };
    let services = of(ResourceType::Waypoint(WaypointRecordType::Service));
    assert_eq!(names(services), ["shop/wp/shop/b"]);
    assert_eq!(services.removed_resources, ["shop/wp/shop/a"]);
    assert_eq!(
        names(of(ResourceType::Waypoint(WaypointRecordType::Destination))),
        ["shop/wp/shop/b"]
    );
}

#[test]
fn waypoint_cannot_probe_records_of_other_gateways() {
    let (own, other) = (
        GatewayName::new("shop", "wp"),
        GatewayName::new("bank", "wp"),
    );
    let store = store(&[
        publish_gateway_records(&own, "a"),
        publish_gateway_records(&other, "a"),
    ]);
    let request = DeltaDiscoveryRequest {
        resource_names_subscribe: vec!["bank/wp/shop/a".into()],
        initial_resource_versions: [("bank/wp/shop/a".to_owned(), "1".to_owned())].into(),
        ..first_request(ResourceType::Waypoint(WaypointRecordType::Service))
    };
    let responses = waypoint_client(&own).send(&request, &store);
    assert_eq!(names(&responses[0]), ["shop/wp/shop/a"]);
    assert_eq!(responses[0].removed_resources, ["bank/wp/shop/a"]);
}

#[test]
fn waypoint_gets_named_addresses_and_no_layer_4_policies() {
    let own = GatewayName::new("shop", "wp");
    let mut store = store(&[
        pod("a", NODE, 1, Some("s"), 1),
        service("s", 1),
        policy("p", false),
    ]);
    for request in [
        first_request(ResourceType::Address),
        DeltaDiscoveryRequest {
            resource_names_subscribe: vec!["*".into()],
            ..first_request(ResourceType::Address)
        },
        on_demand_request(),
    ] {
        let mut peer = waypoint_client(&own);
        let responses = peer.send(&request, &store);
        assert_eq!(names(&responses[0]), [""; 0], "{request:?}");
        assert_eq!(responses[0].removed_resources, [""; 0]);
        assert_eq!(peer.ack(&responses[0], &store), []);
        let again = peer.send(&subscribe_request("*"), &store);
        assert_eq!(names(&again[0]), [""; 0]);
    }
    let mut peer = waypoint_client(&own);
    peer.send(&on_demand_request(), &store);
    let responses = peer.send(&subscribe_request("shop/s"), &store);
    assert_eq!(names(&responses[0]), ["c1//Pod/shop/a", "shop/s"]);
    peer.ack(&responses[0], &store);
    store.update(&pod("b", "", 2, Some("s"), 1));
    store.update(&pod("c", NODE, 3, None, 1));
    assert_eq!(names(&peer.receive_changes(&store)[0]), ["c1//Pod/shop/b"]);
    for kind in [ResourceType::Authorization, ResourceType::Workload] {
        assert_eq!(peer.send(&first_request(kind), &store), [], "{kind:?}");
    }
}

#[test]
fn node_proxies_see_no_waypoint_records() {
    let store = store(&[publish_gateway_records(
        &GatewayName::new("shop", "wp"),
        "a",
    )]);
    for kind in WAYPOINT_RESOURCE_TYPES {
        assert_eq!(
            TestClient::new().send(&first_request(kind), &store),
            [],
            "{kind:?}"
        );
    }
}
