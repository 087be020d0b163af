//! Tests of the routes of outbound connections.

use std::collections::{BTreeMap, BTreeSet};

use ambit_model::{
    HealthPolicy, IpFamilies, LbScope, LoadBalancing, Locality, NetworkMode, WeightedWaypoint,
};

use super::*;

#[test]
fn an_unknown_destination_is_passed_through() {
    let table = table(vec![], vec![]);
    assert_eq!(
        route_from_client(&table, "8.8.8.8:53"),
        Ok(Route::Passthrough {
            dst: addr("8.8.8.8:53"),
            service: None
        })
    );
}

#[test]
fn a_mapped_destination_is_the_ipv4_one_it_is() {
    let table = table(vec![pod("a", &["10.0.0.2"])], vec![]);
    assert_eq!(
        hbone_route(&table, "[::ffff:10.0.0.2]:80").authority,
        "10.0.0.2:80"
    );
}

#[test]
fn a_captured_pod_is_reached_by_tunnel_under_its_identity() {
    let table = table(vec![pod("a", &["10.0.0.2"])], vec![]);
    let route = hbone_route(&table, "10.0.0.2:80");
    assert_eq!(route.addr, addr("10.0.0.2:15008"));
    assert_eq!(route.authority, "10.0.0.2:80");
    assert_eq!(route.expected_identities.as_slice(), [identity("sa-a")]);
    assert_eq!(
        (route.workload.name(), route.waypoint.is_some()),
        ("a", false)
    );
}

#[test]
fn an_uncaptured_pod_is_reached_in_plain() {
    let plain = Workload {
        protocol: Protocol::Tcp,
        ..pod("a", &["10.0.0.2"])
    };
    let table = table(vec![plain], vec![]);
    let Ok(Route::Plain(route)) = route_from_client(&table, "10.0.0.2:80") else {
        panic!()
    };
    assert_eq!(route.addr, addr("10.0.0.2:80"));
}

#[test]
fn a_pod_of_another_network_is_not_at_its_address_here() {
    let far = Workload {
        network: text("far"),
        ..pod("a", &["10.0.0.2"])
    };
    let table = table(vec![far], vec![]);
    assert!(matches!(
        route_from_client(&table, "10.0.0.2:80"),
        Ok(Route::Passthrough { .. })
    ));
}

#[test]
fn service_resolves_to_an_endpoint_and_target_port() {
    let table = table(
        vec![in_service(pod("a", &["10.0.0.2"]), "web", &[(80, 8080)])],
        vec![Service {
            subject_alt_names: vec![
                "spiffe://td/ns/x/sa/y".into(),
                "spiffe://cluster.local/ns/ns/sa/sa-a".into(),
                "not an identity".into(),
            ],
            ..service("web", &["/10.96.0.9"], &[(80, 8080)])
        }],
    );
    let route = hbone_route(&table, "10.96.0.9:80");
    assert_eq!(route.authority, "10.0.0.2:8080");
    assert_eq!(
        route.expected_identities.as_slice(),
        [identity("sa-a"), "spiffe://td/ns/x/sa/y".parse().unwrap()]
    );
    assert_eq!(route.service.unwrap().name, "web");
}

#[test]
fn a_named_port_is_each_endpoints_own() {
    let table = table(
        vec![in_service(pod("a", &["10.0.0.2"]), "web", &[(80, 9090)])],
        vec![service("web", &["/10.96.0.9"], &[(80, 0)])],
    );
    assert_eq!(
        hbone_route(&table, "10.96.0.9:80").authority,
        "10.0.0.2:9090"
    );
}

#[test]
fn a_service_without_a_usable_endpoint_is_an_error_not_a_bypass() {
    let no_endpoint = table(vec![], vec![service("web", &["/10.96.0.9"], &[(80, 80)])]);
    let error = route_from_client(&no_endpoint, "10.96.0.9:80").unwrap_err();
    assert!(
        error.to_string().starts_with("no healthy upstream"),
        "{error}"
    );
    assert_eq!(error.reason().as_str(), "CONNECT");

    let sick = in_service(unhealthy(pod("a", &["10.0.0.2"])), "web", &[(80, 80)]);
    let sick = table(
        vec![sick],
        vec![service("web", &["/10.96.0.9"], &[(80, 80)])],
    );
    assert!(matches!(
        route_from_client(&sick, "10.96.0.9:80"),
        Err(RouteError::NoHealthyUpstream { .. })
    ));

    let foreign_port = table(
        vec![in_service(pod("a", &["10.0.0.2"]), "web", &[(80, 80)])],
        vec![service("web", &["/10.96.0.9"], &[(80, 80)])],
    );
    assert!(matches!(
        route_from_client(&foreign_port, "10.96.0.9:81"),
        Err(RouteError::NoHealthyUpstream { .. })
    ));

    let unmapped = table(
        vec![in_service(pod("a", &["10.0.0.2"]), "web", &[])],
        vec![service("web", &["/10.96.0.9"], &[(80, 0)])],
    );
    assert!(matches!(
        route_from_client(&unmapped, "10.96.0.9:80"),
        Err(RouteError::NoHealthyUpstream { .. })
    ));
}

#[test]
fn unhealthy_endpoints_serve_a_service_that_allows_all() {
    let table = table(
        vec![in_service(
            unhealthy(pod("a", &["10.0.0.2"])),
            "web",
            &[(80, 80)],
        )],
        vec![Service {
            load_balancing: Some(LoadBalancing {
                health_policy: HealthPolicy::AllowAll,
                ..LoadBalancing::default()
            }),
            ..service("web", &["/10.96.0.9"], &[(80, 80)])
        }],
    );
    assert_eq!(hbone_route(&table, "10.96.0.9:80").authority, "10.0.0.2:80");
}

#[test]
fn pods_on_the_nodes_address_are_reached_through_services_only() {
    let on_node = |name: &str| {
        let mut workload = in_service(pod(name, &["10.9.9.9"]), name, &[(80, 80)]);
        workload.network_mode = NetworkMode::HostNetwork;
        workload.protocol = Protocol::Tcp;
        workload
    };
    let table = table(
        vec![on_node("a"), on_node("b")],
        vec![
            service("a", &["/10.96.0.1"], &[(80, 80)]),
            service("b", &["/10.96.0.2"], &[(80, 80)]),
        ],
    );
    assert!(matches!(
        route_from_client(&table, "10.9.9.9:80"),
        Ok(Route::Passthrough { .. })
    ));
    for (dst, name) in [("10.96.0.1:80", "a"), ("10.96.0.2:80", "b")] {
        let Ok(Route::Plain(route)) = route_from_client(&table, dst) else {
            panic!()
        };
        assert_eq!(
            (route.addr, route.workload.name()),
            (addr("10.9.9.9:80"), name)
        );
    }
}

#[test]
fn the_dialed_address_family_is_preferred() {
    let dual = in_service(pod("a", &["10.0.0.2", "fd00::2"]), "web", &[(80, 80)]);
    let both = service("web", &["/10.96.0.9", "/fd00:96::9"], &[(80, 80)]);
    let routes = table(vec![dual.clone()], vec![both.clone()]);
    assert_eq!(
        hbone_route(&routes, "10.96.0.9:80").authority,
        "10.0.0.2:80"
    );
    assert_eq!(
        hbone_route(&routes, "[fd00:96::9]:80").authority,
        "[fd00::2]:80"
    );
    assert_eq!(hbone_route(&routes, "10.0.0.2:80").authority, "10.0.0.2:80");
    assert_eq!(
        hbone_route(&routes, "[fd00::2]:80").addr,
        addr("[fd00::2]:15008")
    );

    let v4_only = in_service(pod("a", &["10.0.0.2"]), "web", &[(80, 80)]);
    let routes = table(vec![v4_only], vec![both.clone()]);
    assert_eq!(
        hbone_route(&routes, "[fd00:96::9]:80").authority,
        "10.0.0.2:80"
    );

    let restricted = Service {
        ip_families: Some(IpFamilies::Ipv6),
        ..both
    };
    let routes = table(vec![dual], vec![restricted]);
    assert_eq!(
        hbone_route(&routes, "10.96.0.9:80").authority,
        "[fd00::2]:80"
    );
}

#[test]
fn a_workload_known_by_name_only_is_resolved_first() {
    let named = Workload {
        hostname: text("db.example.com"),
        ..pod("db", &[])
    };
    let table = table(
        vec![in_service(named, "db", &[(5432, 5432)])],
        vec![service("db", &["/240.0.0.1"], &[(5432, 5432)])],
    );
    let Ok(Route::NeedsDns(pending)) = route_from_client(&table, "240.0.0.1:5432") else {
        panic!()
    };
    assert_eq!(
        (pending.hostname.as_str(), pending.prefer_ipv6),
        ("db.example.com", false)
    );
    assert_eq!(pending.workload().unwrap().name(), "db");
    let Route::Hbone(route) = pending.resolve("192.0.2.7".parse().unwrap()) else {
        panic!()
    };
    assert_eq!(route.addr, addr("192.0.2.7:15008"));
    assert_eq!(route.authority, "192.0.2.7:5432");
}

#[test]
fn passthrough_service_uses_the_dialed_address() {
    let wide = with_lb_mode(
        service("wide", &["/10.0.0.0/8"], &[(80, 80)]),
        LbMode::Passthrough,
    );
    let table = table(vec![pod("a", &["10.0.0.2"])], vec![wide]);
    let Ok(Route::Passthrough { dst, service }) = route_from_client(&table, "10.7.7.7:80") else {
        panic!()
    };
    assert_eq!(
        (dst, service.unwrap().name.as_str()),
        (addr("10.7.7.7:80"), "wide")
    );
    // A pod inside the prefix does not lose its tunnel by that.
    assert_eq!(hbone_route(&table, "10.0.0.2:80").authority, "10.0.0.2:80");
}

// === waypoints ===

fn service_with_waypoint(waypoint: GatewayAddress) -> Service {
    Service {
        waypoint: Some(waypoint),
        ..service("web", &["/10.96.0.9"], &[(80, 8080)])
    }
}

#[test]
fn services_waypoint_gets_the_dialled_address() {
    for at in ["/10.96.0.100", "ns/waypoint.ns.svc.cluster.local"] {
        let table = table(
            vec![
                in_service(pod("a", &["10.0.0.2"]), "web", &[(80, 8080)]),
                waypoint_pod("w", "10.0.0.9"),
            ],
            vec![
                service_with_waypoint(gateway(at, 15008)),
                waypoint_service(),
            ],
        );
        let route = hbone_route(&table, "10.96.0.9:80");
        assert_eq!(route.addr, addr("10.0.0.9:15008"));
        assert_eq!(route.authority, "10.96.0.9:80");
        assert_eq!(route.expected_identities.as_slice(), [identity("waypoint")]);
        assert!(route.waypoint.is_some());
        assert_eq!(route.service.unwrap().name, "web");
    }
}

#[test]
fn a_waypoint_may_be_a_workloads_address_or_name() {
    let by_address = table(
        vec![pod("w", &["10.0.0.9"])],
        vec![service_with_waypoint(gateway("/10.0.0.9", 15008))],
    );
    assert_eq!(
        hbone_route(&by_address, "10.96.0.9:80").addr,
        addr("10.0.0.9:15008")
    );

    let named = Workload {
        hostname: text("wp.example.com"),
        ..pod("w", &[])
    };
    let by_name = table(
        vec![named],
        vec![service_with_waypoint(gateway("ns/wp.example.com", 15008))],
    );
    let Ok(Route::NeedsDns(pending)) = route_from_client(&by_name, "10.96.0.9:80") else {
        panic!()
    };
    let Route::Hbone(route) = pending.resolve("192.0.2.7".parse().unwrap()) else {
        panic!()
    };
    assert_eq!(route.addr, addr("192.0.2.7:15008"));
    // The requested address does not change with the waypoint's address.
    assert_eq!(route.authority, "10.96.0.9:80");
}

#[test]
fn a_waypoint_that_cannot_be_found_fails_the_connection() {
    let unknown = table(
        vec![in_service(pod("a", &["10.0.0.2"]), "web", &[(80, 8080)])],
        vec![service_with_waypoint(gateway(
            "ns/gone.ns.svc.cluster.local",
            15008,
        ))],
    );
    let error = route_from_client(&unknown, "10.96.0.9:80").unwrap_err();
    assert!(
        error.to_string().starts_with("unknown waypoint: ns/gone"),
        "{error}"
    );
    assert_eq!(error.missing_record(), Some("ns/gone.ns.svc.cluster.local"));

    let empty = table(
        vec![in_service(pod("a", &["10.0.0.2"]), "web", &[(80, 8080)])],
        vec![
            service_with_waypoint(gateway("/10.96.0.100", 15008)),
            waypoint_service(),
        ],
    );
    assert!(matches!(
        route_from_client(&empty, "10.96.0.9:80"),
        Err(RouteError::NoWaypointPod { .. })
    ));

    let guarded = Workload {
        waypoint: Some(gateway("/1.2.3.4", 15008)),
        ..pod("a", &["10.0.0.2"])
    };
    let guarded = table(vec![guarded], vec![]);
    assert!(matches!(
        route_from_client(&guarded, "10.0.0.2:80"),
        Err(RouteError::UnknownWaypoint { .. })
    ));
}

#[test]
fn a_passthrough_service_still_has_its_waypoint() {
    let wide = with_lb_mode(
        service_with_waypoint(gateway("/10.96.0.100", 15008)),
        LbMode::Passthrough,
    );
    let table = table(
        vec![waypoint_pod("w", "10.0.0.9")],
        vec![wide, waypoint_service()],
    );
    assert!(hbone_route(&table, "10.96.0.9:80").waypoint.is_some());
}

#[test]
fn the_sources_own_waypoint_does_not_matter() {
    let mut table = table(
        vec![pod("a", &["10.0.0.2"]), waypoint_pod("w", "10.0.0.9")],
        vec![waypoint_service()],
    );
    let source = Workload {
        waypoint: Some(gateway("/10.96.0.100", 15008)),
        ..client()
    };
    table.insert_workload(&source);
    let route = table
        .outbound(&source, addr("10.0.0.2:80"), &mut rng())
        .unwrap();
    let Route::Hbone(route) = route else { panic!() };
    assert!(route.waypoint.is_none());
}

#[test]
fn pods_waypoint_receives_connections_to_the_pod_not_its_service() {
    let guarded = Workload {
        waypoint: Some(gateway("/10.96.0.100", 15008)),
        ..in_service(pod("a", &["10.0.0.2", "fd00::2"]), "web", &[(80, 8080)])
    };
    let table = table(
        vec![guarded, waypoint_pod("w", "10.0.0.9")],
        vec![
            waypoint_service(),
            service("web", &["/10.96.0.9"], &[(80, 8080)]),
        ],
    );
    let route = hbone_route(&table, "10.0.0.2:80");
    assert_eq!(
        (route.addr, route.authority.as_str()),
        (addr("10.0.0.9:15008"), "10.0.0.2:80")
    );
    // The waypoint has no address of the dialled family; the requested address stays the dialled one.
    let route = hbone_route(&table, "[fd00::2]:80");
    assert_eq!(
        (route.addr, route.authority.as_str()),
        (addr("10.0.0.9:15008"), "[fd00::2]:80")
    );
    assert!(hbone_route(&table, "10.96.0.9:80").waypoint.is_none());
}

#[test]
fn no_replica_of_a_waypoint_is_sent_back_to_it() {
    let guarded = Workload {
        waypoint: Some(gateway("/10.96.0.100", 15008)),
        ..pod("a", &["10.0.0.2"])
    };
    let table = table(
        vec![
            guarded,
            waypoint_pod("w1", "10.0.0.8"),
            waypoint_pod("w2", "10.0.0.9"),
        ],
        vec![waypoint_service()],
    );
    for (name, ip) in [("w1", "10.0.0.8"), ("w2", "10.0.0.9")] {
        for seed in 0..20 {
            let mut rng = SmallRng::seed_from_u64(seed);
            let source = waypoint_pod(name, ip);
            let route = table
                .outbound(&source, addr("10.0.0.2:80"), &mut rng)
                .unwrap();
            let Route::Hbone(route) = route else { panic!() };
            assert_eq!(route.addr, addr("10.0.0.2:15008"));
        }
    }
}

#[test]
fn weighted_waypoints_share_connections_by_weight() {
    let weighted = |weights: [u32; 2]| {
        let waypoint = |at, weight| WeightedWaypoint {
            destination: gateway(at, 15008),
            weight,
        };
        table(
            vec![
                pod("w1", &["10.0.0.7"]),
                pod("w2", &["10.0.0.8"]),
                pod("w3", &["10.0.0.9"]),
            ],
            vec![Service {
                weighted_waypoints: vec![
                    waypoint("/10.0.0.7", weights[0]),
                    waypoint("/10.0.0.8", weights[1]),
                ],
                ..service_with_waypoint(gateway("/10.0.0.9", 15008))
            }],
        )
    };
    let shares = |table: &MeshTable| {
        let mut rng = rng();
        let mut shares = BTreeMap::<String, u32>::new();
        for _ in 0..2000 {
            let route = table
                .outbound(&client(), addr("10.96.0.9:80"), &mut rng)
                .unwrap();
            *shares
                .entry(route.workload().unwrap().name().to_owned())
                .or_default() += 1;
        }
        shares
    };
    let canary = shares(&weighted([90, 10]));
    assert!(
        (1700..1900).contains(&canary["w1"]) && canary.len() == 2,
        "{canary:?}"
    );
    assert_eq!(
        shares(&weighted([0, 5])).into_keys().collect::<Vec<_>>(),
        ["w2"]
    );
    assert_eq!(
        shares(&weighted([0, 0])).into_keys().collect::<Vec<_>>(),
        ["w3"]
    );
}

#[test]
fn a_waypoint_service_without_ports_works_with_an_application_tunnel() {
    let mut behind = in_service(pod("w", &["10.0.0.9"]), "waypoint", &[]);
    behind.application_tunnel = Some(ambit_model::AppTunnel {
        protocol: ambit_model::AppTunnelProtocol::Proxy,
        port: Some(15088),
    });
    let table = table(
        vec![behind],
        vec![
            service_with_waypoint(gateway("/10.96.0.100", 15008)),
            service("waypoint", &["/10.96.0.100"], &[]),
        ],
    );
    assert_eq!(
        hbone_route(&table, "10.96.0.9:80").addr,
        addr("10.0.0.9:15008")
    );
}

// === other networks ===

fn remote_network_endpoint() -> Workload {
    Workload {
        uid: "far/SplitHorizonWorkload/gw/ns/web".into(),
        network: text("far"),
        network_gateway: Some(gateway("far/192.0.2.1", 15008)),
        ..in_service(pod("far", &[]), "web", &[(80, 80)])
    }
}

fn remote_network_gateway() -> Workload {
    Workload {
        network: text("far"),
        service_account: text("gateway"),
        ..pod("gw", &["192.0.2.1"])
    }
}

fn remote_network_service(sans: &[&str]) -> Service {
    Service {
        subject_alt_names: sans.iter().map(|san| text(san)).collect(),
        ..service("web", &["/10.96.0.9"], &[(80, 80)])
    }
}

#[test]
fn session_affinity_keeps_endpoints_and_spreads_clients() {
    let endpoints = |count: usize| -> Vec<Workload> {
        let pod = |n| pod(&format!("web-{n}"), &[&format!("10.0.1.{n}")]);
        let pods = (1..=count).map(|n| in_service(pod(n), "web", &[(80, 80)]));
        pods.collect()
    };
    let sticky = Service {
        session_affinity: true,
        ..service("web", &["/10.96.0.9"], &[(80, 80)])
    };
    let client = |n: u32| Workload {
        workload_ips: vec![std::net::Ipv4Addr::from(0x0a00_0200 + n).into()],
        ..pod("client", &["10.0.2.1"])
    };
    let chosen = |count: usize| -> Vec<SocketAddr> {
        let table = table(endpoints(count), vec![sticky.clone()]);
        let mut rng = rng();
        let mut to = |n| {
            let route = table.outbound(&client(n), addr("10.96.0.9:80"), &mut rng);
            let Ok(Route::Hbone(route)) = route else {
                panic!("{route:?}")
            };
            route.addr
        };
        let first: Vec<SocketAddr> = (0..300).map(&mut to).collect();
        let again: Vec<SocketAddr> = (0..300).map(&mut to).collect();
        assert_eq!(first, again);
        first
    };
    let (three, four) = (chosen(3), chosen(4));
    for endpoint in 1..=3 {
        let at: SocketAddr = format!("10.0.1.{endpoint}:15008").parse().unwrap();
        let clients = three.iter().filter(|chosen| **chosen == at).count();
        assert!((60..=140).contains(&clients), "{clients} of 300 at {at}");
    }
    // A client that moves when an endpoint is added moves to that one.
    let new: SocketAddr = "10.0.1.4:15008".parse().unwrap();
    let moved = three
        .iter()
        .zip(&four)
        .filter(|(before, now)| before != now);
    assert!(moved.clone().count() > 30);
    assert!(moved.clone().all(|(_, now)| *now == new));
}

#[test]
fn an_endpoint_of_another_network_is_reached_by_a_tunnel_in_a_tunnel() {
    let table = table(
        vec![remote_network_endpoint(), remote_network_gateway()],
        vec![remote_network_service(&[
            "spiffe://cluster.local/ns/ns/sa/web",
        ])],
    );
    let Ok(Route::DoubleHbone { outer, inner }) = route_from_client(&table, "10.96.0.9:80") else {
        panic!()
    };
    assert_eq!(outer.addr, addr("192.0.2.1:15008"));
    assert_eq!(outer.authority, "web.ns.svc.cluster.local:80");
    assert_eq!(outer.expected_identities.as_slice(), [identity("gateway")]);
    assert_eq!(inner.authority, outer.authority);
    assert_eq!(inner.expected_identities.as_slice(), [identity("web")]);
}

#[test]
fn another_network_without_names_or_gateway_is_an_error() {
    let nameless = table(
        vec![remote_network_endpoint(), remote_network_gateway()],
        vec![remote_network_service(&[])],
    );
    assert!(matches!(
        route_from_client(&nameless, "10.96.0.9:80"),
        Err(RouteError::NoIdentities { .. })
    ));
    let san = "spiffe://cluster.local/ns/ns/sa/web";
    let no_gateway = table(
        vec![remote_network_endpoint()],
        vec![remote_network_service(&[san])],
    );
    assert!(matches!(
        route_from_client(&no_gateway, "10.96.0.9:80"),
        Err(RouteError::UnknownGateway { .. })
    ));
}

#[test]
fn failover_prefers_the_own_network_and_uses_the_other_when_it_must() {
    let near = in_service(pod("near", &["10.0.0.2"]), "web", &[(80, 80)]);
    let service = Service {
        load_balancing: Some(LoadBalancing {
            routing_preferences: vec![LbScope::Network, LbScope::Region, LbScope::Zone],
            mode: LbMode::Failover,
            ..LoadBalancing::default()
        }),
        ..remote_network_service(&["spiffe://cluster.local/ns/ns/sa/web"])
    };
    let mut table = table(
        vec![
            near.clone(),
            remote_network_endpoint(),
            remote_network_gateway(),
        ],
        vec![service],
    );
    for seed in 0..20 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let route = table
            .outbound(&client(), addr("10.96.0.9:80"), &mut rng)
            .unwrap();
        assert!(matches!(route, Route::Hbone(_)));
    }
    table.insert_workload(&unhealthy(near));
    assert!(matches!(
        route_from_client(&table, "10.96.0.9:80"),
        Ok(Route::DoubleHbone { .. })
    ));
}

// === balancing ===

fn workloads_by_locality() -> Vec<Workload> {
    let at = |name: &str, ip: &str, region: &str, zone: &str, node: &str| {
        let mut workload = in_service(pod(name, &[ip]), "web", &[(80, 80)]);
        workload.locality = Locality {
            region: text(region),
            zone: text(zone),
            ..Locality::default()
        };
        workload.node = text(node);
        workload
    };
    vec![
        at("same-node", "10.0.1.1", "r", "z", "local"),
        at("same-zone", "10.0.1.2", "r", "z", "other"),
        at("same-region", "10.0.1.3", "r", "y", "other"),
        at("elsewhere", "10.0.1.4", "q", "z", "other"),
    ]
}

fn picked_endpoints(
    workloads: Vec<Workload>,
    scopes: &[LbScope],
    mode: LbMode,
) -> BTreeSet<String> {
    let service = Service {
        load_balancing: Some(LoadBalancing {
            routing_preferences: scopes.to_vec(),
            mode,
            ..LoadBalancing::default()
        }),
        ..service("web", &["/10.96.0.9"], &[(80, 80)])
    };
    let table = table(workloads, vec![service]);
    let mut source = client();
    source.locality = Locality {
        region: text("r"),
        zone: text("z"),
        ..Locality::default()
    };
    let mut rng = rng();
    (0..200)
        .filter_map(|_| table.outbound(&source, addr("10.96.0.9:80"), &mut rng).ok())
        .map(|route| route.workload().unwrap().name().to_owned())
        .collect()
}

#[test]
fn balancing_modes_select_by_locality() {
    use LbScope::{Network, Node, Region, Zone};
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let all: BTreeSet<String> = names(&["same-node", "same-zone", "same-region", "elsewhere"]);
    assert_eq!(
        picked_endpoints(workloads_by_locality(), &[], LbMode::Standard),
        all
    );
    assert_eq!(
        picked_endpoints(workloads_by_locality(), &[Node], LbMode::Strict),
        names(&["same-node"])
    );
    assert_eq!(
        picked_endpoints(workloads_by_locality(), &[Region, Zone], LbMode::Strict),
        names(&["same-node", "same-zone"])
    );
    assert_eq!(
        picked_endpoints(
            workloads_by_locality()[1..].to_vec(),
            &[Node],
            LbMode::Strict
        ),
        names(&[])
    );
    let closest = [Network, Region, Zone, Node];
    assert_eq!(
        picked_endpoints(workloads_by_locality(), &closest, LbMode::Failover),
        names(&["same-node"])
    );
    assert_eq!(
        picked_endpoints(
            workloads_by_locality()[1..].to_vec(),
            &closest,
            LbMode::Failover
        ),
        names(&["same-zone"])
    );
    assert_eq!(
        picked_endpoints(
            workloads_by_locality()[2..].to_vec(),
            &closest,
            LbMode::Failover
        ),
        names(&["same-region"])
    );
    assert_eq!(
        picked_endpoints(
            workloads_by_locality()[3..].to_vec(),
            &closest,
            LbMode::Failover
        ),
        names(&["elsewhere"])
    );
}

#[test]
fn capacity_is_a_weight_and_zero_is_never_picked() {
    let weight = |name: &str, ip: &str, capacity| Workload {
        capacity,
        ..in_service(pod(name, &[ip]), "web", &[(80, 80)])
    };
    let workloads = vec![
        weight("none", "10.0.1.1", 0),
        weight("one", "10.0.1.2", 1),
        weight("nine", "10.0.1.3", 9),
    ];
    for mode in [LbMode::Standard, LbMode::Failover] {
        let service = super::with_lb_mode(service("web", &["/10.96.0.9"], &[(80, 80)]), mode);
        let table = table(workloads.clone(), vec![service]);
        let mut rng = rng();
        let mut counts = BTreeMap::<String, u32>::new();
        for _ in 0..4000 {
            let route = table
                .outbound(&client(), addr("10.96.0.9:80"), &mut rng)
                .unwrap();
            *counts
                .entry(route.workload().unwrap().name().to_owned())
                .or_default() += 1;
        }
        assert!(!counts.contains_key("none"), "{counts:?}");
        assert!((300..500).contains(&counts["one"]), "{mode:?}: {counts:?}");
    }
}

#[test]
fn a_single_usable_endpoint_among_many_is_found() {
    let mut workloads: Vec<_> = (0..300)
        .map(|number| Workload {
            capacity: 0,
            ..in_service(
                pod(&format!("p{number}"), &["10.1.0.1"]),
                "web",
                &[(80, 80)],
            )
        })
        .collect();
    workloads.push(in_service(pod("usable", &["10.0.0.2"]), "web", &[(80, 80)]));
    let table = table(
        workloads,
        vec![service("web", &["/10.96.0.9"], &[(80, 80)])],
    );
    assert_eq!(
        hbone_route(&table, "10.96.0.9:80").workload.name(),
        "usable"
    );
}

#[test]
fn another_endpoint_is_chosen_when_one_has_failed() {
    let endpoints = [("a", "10.0.0.2"), ("b", "10.0.0.3")];
    let pods = endpoints.map(|(name, ip)| in_service(pod(name, &[ip]), "web", &[(80, 8080)]));
    let mut sticky = service("web", &["/10.96.0.9"], &[(80, 8080)]);
    for affinity in [false, true] {
        sticky.session_affinity = affinity;
        let table = table(pods.to_vec(), vec![sticky.clone()]);
        for (failed, other) in [("a", "10.0.0.3:15008"), ("b", "10.0.0.2:15008")] {
            let failed = [text(&format!("Kubernetes//Pod/ns/{failed}"))];
            for seed in 0..20 {
                let mut rng = SmallRng::seed_from_u64(seed);
                let again =
                    table.outbound_excluding(&client(), addr("10.96.0.9:80"), &failed, &mut rng);
                let Ok(Route::Hbone(again)) = again else {
                    panic!("{again:?}")
                };
                assert_eq!(again.addr, addr(other));
            }
        }
    }
}

#[test]
fn a_waypoint_s_pods_that_are_not_ready_are_tried_when_none_is() {
    let guarded = in_service(pod("a", &["10.0.0.2"]), "web", &[(80, 8080)]);
    let mut web = service("web", &["/10.96.0.9"], &[(80, 8080)]);
    web.waypoint = Some(gateway("/10.96.0.100", 15008));
    let services = vec![web, waypoint_service()];
    let ending = unhealthy(waypoint_pod("w1", "10.0.0.8"));
    let serves = waypoint_pod("w2", "10.0.0.9");
    for (pods, expected) in [
        (vec![ending.clone()], "10.0.0.8:15008"),
        (vec![ending, serves], "10.0.0.9:15008"),
    ] {
        let all = pods.into_iter().chain([guarded.clone()]).collect();
        let table = table(all, services.clone());
        for _ in 0..20 {
            assert_eq!(hbone_route(&table, "10.96.0.9:80").addr, addr(expected));
        }
    }
}
