//! Waypoints of other controllers, which labels name.

use ambit_k8s_api::Kind;
use ambit_model::{AppTunnel, AppTunnelProtocol};

use super::{
    attachment::{namespace, pod_labelled, service_labelled, service_waypoint, waypoint},
    instances::{GATEWAY_NAME_LABEL, effective_message, pod, waypoint_service},
    routes_and_conditions::waypoint_condition,
    *,
};

const USE_WP: &str = "istio.io/use-waypoint: wp";
const FOR_ALL: &str = ", labels: {istio.io/waypoint-for: all}";
const STATUS_ADDRESSES: &str = "[{type: IPAddress, value: 10.96.0.10}]";
const WAYPOINT_IP: &str = "/10.96.0.10";
const BINDING: &str = "ambient.istio.io/waypoint-inbound-binding";

/// Returns the Gateway `shop/wp` of another controller's class, with addresses in its status.
fn foreign_gateway(more_metadata: &str, addresses: &str) -> String {
    gateway("wp", more_metadata).replace("istio-waypoint", "other")
        + &format!("status: {{addresses: {addresses}}}\n")
}

/// Returns the message of the condition `WaypointBound` of the Service `cart`.
fn reported_condition(mesh: &TestMesh) -> String {
    let key = ObjectKey::new(Kind::Service, "shop", "cart");
    let derived_status = mesh.index.derived_status(&key).unwrap();
    derived_status.condition.as_ref().unwrap().message.clone()
}

#[test]
fn labels_may_name_any_gateway_that_has_an_address() {
    let service = || service_labelled(USE_WP);
    let cart = || pod_labelled(USE_WP);
    let by_name = "[{value: 10.96.0.10}, {type: Hostname, value: far.shop.svc.cluster.local}, {value: 10.96.0.11}]";
    let no_address = "shop/no-address.wp.shop.waypoint.invalid";
    let unsupported = "shop/unsupported-type.wp.shop.waypoint.invalid";
    let of_class = "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: other, labels: {istio.io/waypoint-for: workload}}\nspec: {controllerName: example.com/other}\n";
    for (what, gateway, more, of_pod, of_service) in [
        (
            "for services by itself",
            foreign_gateway("", STATUS_ADDRESSES),
            "",
            "",
            WAYPOINT_IP,
        ),
        (
            "for both",
            foreign_gateway(FOR_ALL, STATUS_ADDRESSES),
            "",
            WAYPOINT_IP,
            WAYPOINT_IP,
        ),
        (
            "a host name before addresses",
            foreign_gateway(FOR_ALL, by_name),
            "",
            "shop/far.shop.svc.cluster.local",
            "shop/far.shop.svc.cluster.local",
        ),
        (
            "what its class is for",
            foreign_gateway("", STATUS_ADDRESSES),
            of_class,
            WAYPOINT_IP,
            unsupported,
        ),
        (
            "itself before its class",
            foreign_gateway(FOR_ALL, STATUS_ADDRESSES),
            of_class,
            WAYPOINT_IP,
            WAYPOINT_IP,
        ),
        (
            "for nothing",
            foreign_gateway(", labels: {istio.io/waypoint-for: none}", STATUS_ADDRESSES),
            "",
            "",
            unsupported,
        ),
        (
            "nowhere",
            foreign_gateway(FOR_ALL, "[]"),
            "",
            no_address,
            no_address,
        ),
        (
            "at an address of a type that nobody knows",
            foreign_gateway(FOR_ALL, "[{type: example.com/x, value: 10.96.0.10}]"),
            "",
            no_address,
            no_address,
        ),
    ] {
        let mut objects = vec![gateway, cart(), service()];
        objects.extend((!more.is_empty()).then(|| more.to_owned()));
        let objects: Vec<&str> = objects.iter().map(String::as_str).collect();
        let mesh = TestMesh::from_yaml(&join_documents(&objects));
        let found = (
            waypoint(mesh.pod("cart-1")).unwrap_or_default(),
            service_waypoint(&mesh).unwrap_or_default(),
        );
        assert_eq!(
            (found.0.as_str(), found.1.as_str()),
            (of_pod, of_service),
            "{what}"
        );
    }
}

#[test]
fn without_a_label_no_gateway_of_another_class_takes_anything() {
    let mesh = TestMesh::from_yaml(&join_documents(&[
        &foreign_gateway(FOR_ALL, STATUS_ADDRESSES),
        CART_POD,
        CART_SERVICE,
    ]));
    assert_eq!(waypoint(mesh.pod("cart-1")), None);
    assert_eq!(service_waypoint(&mesh), None);
    let for_account = foreign_gateway(
        ", annotations: {istio.io/for-service-account: cart}",
        STATUS_ADDRESSES,
    );
    let mesh = TestMesh::from_yaml(&join_documents(&[&for_account, CART_POD, CART_SERVICE]));
    assert_eq!(waypoint(mesh.pod("cart-1")), None);
}

#[test]
fn a_gateway_of_another_revision_is_another_control_planes() {
    // Of our class: it is meant for the namespace, under any controller.
    let of = |revision: &str| {
        let labels = format!(", labels: {{istio.io/waypoint-for: all{revision}}}");
        gateway("wp", &labels) + &format!("status: {{addresses: {STATUS_ADDRESSES}}}\n")
    };
    let other = of(", istio.io/rev: other");
    let mut mesh = TestMesh::from_yaml(&join_documents(&[&other, CART_POD, CART_SERVICE]));
    let found = |mesh: &TestMesh| {
        let of_pod = mesh.pod("cart-1").endpoint_waypoint.as_ref().unwrap();
        let at = of_pod.waypoint.destination.to_string();
        assert_eq!(service_waypoint(mesh).as_ref(), Some(&at));
        (at, of_pod.refuse, mesh.waypoint_gateways.is_empty())
    };
    let ours = ("shop/wp.shop.svc.cluster.local".to_owned(), false, false);
    let foreign = (WAYPOINT_IP.to_owned(), true, true);
    assert_eq!(found(&mesh), foreign);
    mesh.apply(&of(""));
    assert_eq!(found(&mesh), ours);
    mesh.apply(&namespace("istio.io/rev: other"));
    assert_eq!(found(&mesh), foreign, "its namespace says so");
    mesh.apply(&of(", istio.io/rev: default"));
    assert_eq!(found(&mesh), ours, "it goes before its namespace");
    mesh.apply(&gateway("wp", ", labels: {istio.io/rev: other}"));
    let (at, ..) = found(&mesh);
    assert_eq!(at, "shop/no-address.wp.shop.waypoint.invalid");
}

#[test]
fn gateways_of_all_revisions_of_the_mesh_are_its_own() {
    let of = |revision: &str| {
        let labels = format!(", labels: {{istio.io/waypoint-for: all, istio.io/rev: {revision}}}");
        gateway("wp", &labels) + &format!("status: {{addresses: {STATUS_ADDRESSES}}}\n")
    };
    let control_plane = |name: &str, more: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: istio-system, labels: \
             {{app: istiod, app.kubernetes.io/part-of: ambit, istio.io/rev: canary{more}}}}}\n\
             spec: {{clusterIP: 10.96.0.99, ports: [{{port: 15012}}]}}\n"
        )
    };
    let mut mesh = TestMesh::from_yaml(&join_documents(&[&of("canary"), CART_POD, CART_SERVICE]));
    let is_own = |mesh: &TestMesh| {
        let at = service_waypoint(mesh).unwrap();
        let is_own = !mesh.waypoint_gateways.is_empty();
        assert_eq!(at == "shop/wp.shop.svc.cluster.local", is_own, "{at}");
        is_own
    };
    assert!(!is_own(&mesh), "no such control plane is known");
    mesh.apply(&control_plane("istiod-canary", ""));
    assert!(is_own(&mesh));
    // The Gateway moves between revisions, and its waypoint is served throughout.
    assert_eq!(mesh.apply(&of("default")), [""; 0]);
    assert_eq!(mesh.apply(&of("canary")), [""; 0]);
    mesh.apply(&of("stable"));
    assert!(!is_own(&mesh), "no such tag is known");
    mesh.apply(&control_plane(
        "istiod-revision-tag-stable",
        ", istio.io/tag: stable",
    ));
    assert!(is_own(&mesh));
    mesh.delete(Kind::Service, "istio-system", "istiod-revision-tag-stable");
    assert!(!is_own(&mesh));
    // Another implementation's control plane has a Service, too.
    let istios = control_plane("istiod-stable", "").replace("part-of: ambit", "part-of: istio");
    mesh.apply(&istios.replace("rev: canary", "rev: stable"));
    assert!(!is_own(&mesh));
}

#[test]
fn it_is_followed_as_its_address_comes_changes_and_goes() {
    let mut mesh = TestMesh::from_yaml(&join_documents(&[
        &foreign_gateway(FOR_ALL, "[]"),
        CART_POD,
        CART_SERVICE,
        &namespace(USE_WP),
    ]));
    let both = |mesh: &TestMesh| (waypoint(mesh.pod("cart-1")), service_waypoint(mesh));
    let at = |text: &str| (Some(text.to_owned()), Some(text.to_owned()));
    let no_address = at("shop/no-address.wp.shop.waypoint.invalid");
    assert_eq!(both(&mesh), no_address);
    mesh.apply(&foreign_gateway(FOR_ALL, STATUS_ADDRESSES));
    assert_eq!(both(&mesh), at(WAYPOINT_IP));
    mesh.apply(&foreign_gateway(FOR_ALL, "[{value: 'fd00::9'}]"));
    assert_eq!(both(&mesh), at("/fd00::9"));
    mesh.apply(&foreign_gateway(FOR_ALL, "[]"));
    assert_eq!(both(&mesh), no_address);
    // It becomes one of ours, which have their name for an address.
    mesh.apply(&gateway("wp", FOR_ALL));
    assert_eq!(both(&mesh), at("shop/wp.shop.svc.cluster.local"));
    mesh.apply(&foreign_gateway(FOR_ALL, STATUS_ADDRESSES));
    assert_eq!(both(&mesh), at(WAYPOINT_IP));
    assert!(mesh.waypoint_gateways.is_empty() && mesh.waypoint_services.is_empty());
    mesh.delete(Kind::Gateway, "shop", "wp");
    assert_eq!(both(&mesh), at("shop/missing.wp.shop.waypoint.invalid"));
}

#[test]
fn unresolved_foreign_waypoint_may_be_permitted() {
    let mut mesh = TestMesh::with_config(MeshConfig {
        waypoint_missing: WaypointMissing::BypassWaypoint,
        ..MeshConfig::default()
    });
    mesh.apply(&join_documents(&[
        &foreign_gateway(FOR_ALL, "[]"),
        &pod_labelled(USE_WP),
        &service_labelled(USE_WP),
    ]));
    assert_eq!(waypoint(mesh.pod("cart-1")), None);
    assert_eq!(service_waypoint(&mesh), None);
    assert_eq!(
        waypoint_condition(&mesh, Kind::Service, "shop", "cart"),
        "false WaypointIsNotReady"
    );
    assert!(
        reported_condition(&mesh).ends_with("traffic goes without one"),
        "{}",
        reported_condition(&mesh)
    );
}

#[test]
fn only_namespaces_that_its_listener_allows_may_use_it() {
    let elsewhere = "istio.io/use-waypoint: wp, istio.io/use-waypoint-namespace: bank";
    let there = |more: &str| {
        foreign_gateway(FOR_ALL, STATUS_ADDRESSES)
            .replace("namespace: shop", "namespace: bank")
            .replace("protocol: HBONE", &format!("protocol: HBONE{more}"))
    };
    let denied = "bank/not-permitted.wp.bank.waypoint.invalid";
    for (what, gateway, expected) in [
        ("its own, unless it says more", there(""), denied),
        (
            "all",
            there(", allowedRoutes: {namespaces: {from: All}}"),
            WAYPOINT_IP,
        ),
        // An ingress gateway's listener does not concern waypoints.
        (
            "another listener's consent",
            there(", allowedRoutes: {namespaces: {from: All}}").replace("HBONE", "HTTP"),
            denied,
        ),
    ] {
        let service = service_labelled(elsewhere);
        let mesh = TestMesh::from_yaml(&join_documents(&[&gateway, CART_POD, &service]));
        assert_eq!(service_waypoint(&mesh).as_deref(), Some(expected), "{what}");
        let condition = waypoint_condition(&mesh, Kind::Service, "shop", "cart");
        let expected = match expected {
            WAYPOINT_IP => "true WaypointAccepted",
            _ => "false AttachmentDenied",
        };
        assert_eq!(condition, expected, "{what}");
    }
}

#[test]
fn accounts_of_the_pods_with_its_label_are_its_identities_and_are_named() {
    let mut mesh = TestMesh::from_yaml(&join_documents(&[
        &foreign_gateway(FOR_ALL, STATUS_ADDRESSES),
        &pod_labelled(USE_WP),
        &service_labelled(USE_WP),
        &waypoint_service(),
    ]));
    let identities = |mesh: &TestMesh| -> Vec<String> {
        let own = mesh.pod("cart-1").endpoint_waypoint.clone().unwrap();
        // Refused rather than redirected there, since it would be taken for the pod itself.
        assert!(own.enforce && own.refuse && !own.for_services);
        own.identities.iter().map(ToString::to_string).collect()
    };
    assert!(identities(&mesh).is_empty());
    assert!(
        reported_condition(&mesh).contains("nothing is known to be the waypoint"),
        "{}",
        reported_condition(&mesh)
    );
    mesh.apply(&pod("gw-1", GATEWAY_NAME_LABEL, "gw", "10.1.2.9"));
    mesh.apply(&pod("gw-2", GATEWAY_NAME_LABEL, "gw", "10.1.2.10"));
    assert_eq!(identities(&mesh), ["spiffe://cluster.local/ns/shop/sa/gw"]);
    mesh.apply(&pod("evil", GATEWAY_NAME_LABEL, "default", "10.1.2.66"));
    assert_eq!(
        identities(&mesh),
        [
            "spiffe://cluster.local/ns/shop/sa/default",
            "spiffe://cluster.local/ns/shop/sa/gw"
        ]
    );
    let message = reported_condition(&mesh);
    assert!(
        message.contains("(class other)") && message.ends_with("accounts: default, gw"),
        "{message}"
    );
    // Of another namespace, and of another Gateway.
    let elsewhere = pod("x", GATEWAY_NAME_LABEL, "x", "10.1.2.67")
        .replace("namespace: shop", "namespace: bank");
    mesh.apply(&elsewhere);
    mesh.apply(&pod(
        "y",
        &GATEWAY_NAME_LABEL.replace("wp", "z"),
        "y",
        "10.1.2.68",
    ));
    mesh.delete(Kind::Pod, "shop", "evil");
    assert_eq!(identities(&mesh), ["spiffe://cluster.local/ns/shop/sa/gw"]);
    // Its pods are behind no waypoint, and its Service is one like others: its Gateway has no condition.
    assert_eq!(waypoint(mesh.pod("gw-1")), None);
    assert_eq!(effective_message(&mesh), None);
}

#[test]
fn service_record_has_readiness_of_a_foreign_waypoint() {
    let own = pod("gw-1", GATEWAY_NAME_LABEL, "gw", "10.1.2.9");
    let starting = own.replace("status: \"True\"", "status: \"False\"");
    let mut mesh = TestMesh::from_yaml(&join_documents(&[
        &foreign_gateway("", STATUS_ADDRESSES),
        CART_POD,
        &service_labelled(USE_WP),
        &starting,
    ]));
    let service_condition =
        |mesh: &TestMesh| waypoint_condition(mesh, Kind::Service, "shop", "cart");
    assert_eq!(service_condition(&mesh), "false NoReadyWaypoint");
    mesh.apply(&own);
    assert_eq!(service_condition(&mesh), "true WaypointAccepted");
    mesh.apply(&starting);
    assert_eq!(service_condition(&mesh), "false NoReadyWaypoint");
}

#[test]
fn what_is_at_its_address_does_not_go_through_it() {
    let by_name = "[{type: Hostname, value: wp.shop.svc.cluster.local}]";
    for addresses in [STATUS_ADDRESSES, by_name] {
        let unmanaged = waypoint_service().replace(
            "labels: {gateway.istio.io/managed: istio.io-mesh-controller}",
            "labels: {}",
        );
        let mesh = TestMesh::from_yaml(&join_documents(&[
            &foreign_gateway(FOR_ALL, addresses),
            &unmanaged,
            CART_SERVICE,
            CART_POD,
            &namespace(USE_WP),
        ]));
        let own = mesh.service("shop/wp.shop.svc.cluster.local");
        assert_eq!(own.waypoint, None, "{addresses}");
        assert!(service_waypoint(&mesh).is_some());
    }
}

#[test]
fn policies_say_what_another_controllers_waypoint_means_for_them() {
    let attached = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p, namespace: shop}\nspec: {targetRefs: [{kind: Service, name: cart}], rules: [{to: [{operation: {methods: [GET]}}]}]}\n";
    let callers = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: q, namespace: shop}\nspec: {selector: {matchLabels: {app: cart}}, rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]}]}\n";
    let mut mesh = TestMesh::from_yaml(&join_documents(&[
        &foreign_gateway(FOR_ALL, STATUS_ADDRESSES),
        &pod_labelled(USE_WP),
        &service_labelled(USE_WP),
        &pod("gw-1", GATEWAY_NAME_LABEL, "gw", "10.1.2.9"),
        attached,
        callers,
    ]));
    let key = ObjectKey::new(Kind::AuthorizationPolicy, "shop", "p");
    let derived_status = mesh
        .index
        .derived_status(&key)
        .unwrap()
        .condition
        .clone()
        .unwrap();
    assert_eq!(
        (derived_status.is_true, derived_status.reason),
        (false, "AncestorNotBound")
    );
    assert!(
        derived_status.message.contains("another control plane"),
        "{derived_status:?}"
    );
    assert!(mesh.waypoint_policies.is_empty());
    // At the pod, the waypoint is the caller.
    let problems = mesh.problems();
    assert!(
        problems
            .iter()
            .any(|one| one.contains("behind the waypoint shop/wp")),
        "{problems:?}"
    );
    mesh.apply(&callers.replace("sa/client", "sa/gw"));
    let problems = mesh.problems();
    assert!(
        !problems
            .iter()
            .any(|one| one.contains("behind the waypoint")),
        "{problems:?}"
    );
}

#[test]
fn tunnels_are_passed_to_its_pods_by_their_record() {
    let part = || pod("wp-1", GATEWAY_NAME_LABEL, "wp", "10.1.2.50");
    let of = |annotation: &str| {
        let annotations = format!(", annotations: {{{BINDING}: {annotation}}}");
        foreign_gateway(&annotations, STATUS_ADDRESSES)
    };
    let class = "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: other, annotations: {ambient.istio.io/waypoint-inbound-binding: NONE/8080}}\nspec: {controllerName: example.com/other}\n";
    let tunnel = |protocol, port| Some(AppTunnel { protocol, port });
    let proxy = AppTunnelProtocol::Proxy;
    for (annotation, expected) in [
        ("PROXY/15088", tunnel(proxy, Some(15088))),
        ("PROXY", tunnel(proxy, None)),
        ("NONE/80", tunnel(AppTunnelProtocol::None, Some(80))),
        ("PROXY/0", None),
        ("PROXY/70000", None),
        ("PROXY/", None),
        ("proxy", None),
        ("''", None),
    ] {
        let mesh = TestMesh::from_yaml(&join_documents(&[&of(annotation), &part(), CART_POD]));
        let found = mesh.pod("wp-1").application_tunnel;
        assert_eq!(found, expected, "{annotation}");
        assert_eq!(mesh.pod("cart-1").application_tunnel, None);
        let is_noted = mesh.problems().concat().contains(BINDING);
        assert_eq!(is_noted, expected.is_none(), "{annotation}");
    }
    let mut mesh = TestMesh::from_yaml(&join_documents(&[
        &foreign_gateway("", STATUS_ADDRESSES),
        &part(),
    ]));
    let found = |mesh: &TestMesh| mesh.pod("wp-1").application_tunnel;
    assert_eq!(found(&mesh), None);
    mesh.apply(class);
    let by_class = tunnel(AppTunnelProtocol::None, Some(8080));
    assert_eq!(found(&mesh), by_class, "as its class says");
    mesh.apply(&of("PROXY/15088"));
    assert_eq!(found(&mesh), tunnel(proxy, Some(15088)), "itself first");
    let ours = of("PROXY/15088").replace(
        "gatewayClassName: other",
        "gatewayClassName: istio-waypoint",
    );
    mesh.apply(&ours);
    assert_eq!(found(&mesh), None, "our own speak HBONE");
    assert!(mesh.problems().concat().contains("has no effect"));
}

#[test]
fn receiving_listener_sets_who_may_use_the_handover() {
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: cart, namespace: far, labels: {istio.io/use-waypoint: wp, istio.io/use-waypoint-namespace: shop}}\nspec: {clusterIP: 10.96.0.9, ports: [{port: 80}]}\n";
    for (protocol, annotation, allowed) in [
        ("istio.io/PROXY", "PROXY", true),
        ("TCP", "PROXY/15088", true),
        ("TCP", "PROXY/15089", false),
    ] {
        let gateway = format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: wp, namespace: shop, annotations: {{{BINDING}: {annotation}}}}}\nspec:\n  gatewayClassName: other\n  listeners:\n  - {{name: mesh, port: 15008, protocol: HBONE}}\n  - {{name: behind, port: 15088, protocol: {protocol}, allowedRoutes: {{namespaces: {{from: All}}}}}}\nstatus: {{addresses: {STATUS_ADDRESSES}}}\n"
        );
        let mesh = TestMesh::from_yaml(&join_documents(&[&gateway, service]));
        let found = mesh.services.values().next().unwrap().waypoint.as_ref();
        let found = found.unwrap().destination.to_string();
        assert_eq!(
            found == WAYPOINT_IP,
            allowed,
            "{protocol} {annotation}: {found}"
        );
    }
}
