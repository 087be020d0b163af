//! Records of GRPCRoutes, TCPRoutes and TLSRoutes, and the routes' status conditions.

use ambit_k8s_api::Kind;
use ambit_model::{ArcStr, HttpPathMatch, HttpValueMatch, StreamRoute};

use super::*;

const PARENT: &str = "parentRefs: [{group: '', kind: Service, name: cart, namespace: shop}]";
const SERVICE_RECORD_NAME: &str = "shop/wp shop/cart.shop.svc.cluster.local";

fn route(kind: Kind, name: &str, age: u32, spec: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\nmetadata: {{name: {name}, namespace: shop, \
         creationTimestamp: '2026-01-01T00:00:0{age}Z'}}\nspec: {{{PARENT}, {spec}}}\n"
    )
}

/// Builds a mesh with a service whose port has a protocol, a waypoint, and routes.
fn mesh(protocol: &str, routes: &[String]) -> TestMesh {
    let service = CART_SERVICE.replace("port: 80", &format!("port: 80, appProtocol: {protocol}"));
    let mut mesh = TestMesh::from_yaml(&join_documents(&[&service, CART_POD, &gateway("wp", "")]));
    for route in routes {
        let value: serde_json::Value = serde_saphyr::from_str(route).unwrap();
        let key = ObjectKey::read(&value).unwrap();
        match Object::from_value(key.kind, &value) {
            Ok(object) => mesh.index.apply(&object, None, &mut mesh.pods),
            Err(error) => mesh
                .index
                .apply_invalid(&key, &error, &value, &mut mesh.pods),
        }
    }
    mesh.flush();
    mesh
}

fn accepted_condition(mesh: &TestMesh, kind: Kind, name: &str) -> (String, String) {
    let derived_status = mesh
        .index
        .derived_status(&ObjectKey::new(kind, "shop", name));
    let (_, condition) = &derived_status.unwrap().entries[0].conditions[0];
    let text = format!("{} {}", condition.is_true, condition.reason);
    (text, condition.message.clone())
}

#[test]
fn services_and_methods_of_grpc_are_paths() {
    let exact = |service: &str, method: &str| format!("{{method: {{{service}{method}}}}}");
    let matches = [
        exact("service: a.B", ", method: C"),
        exact("service: a.B", ""),
        exact("method: C", ""),
        exact("type: RegularExpression, service: 'a|b'", ", method: 'C+'"),
        "{headers: [{name: X-User, value: a}]}".to_owned(),
    ];
    let spec = format!(
        "rules: [{{matches: [{}], backendRefs: [{{name: cart, port: 80, weight: 3}}]}}]",
        matches.join(", ")
    );
    let mesh = mesh("grpc", &[route(Kind::GRPCRoute, "r", 0, &spec)]);
    let record = &mesh.waypoint_services[SERVICE_RECORD_NAME].routes[0];
    assert_eq!(record.name.to_string(), "GRPCRoute/shop/r");
    let rule = &record.rules[0];
    assert_eq!(rule.unsupported, None);
    assert_eq!(rule.backends[0].weight, 3);
    let paths: Vec<_> = rule.matches.iter().map(|one| one.path.clone()).collect();
    assert_eq!(
        paths,
        [
            Some(HttpPathMatch::Exact("/a.B/C".into())),
            Some(HttpPathMatch::Prefix("/a.B".into())),
            Some(HttpPathMatch::Regex("/[^/]+/C".into())),
            Some(HttpPathMatch::Regex("/(?:a|b)/(?:C+)".into())),
            None,
        ]
    );
    let header = ("x-user".into(), HttpValueMatch::Exact("a".into()));
    assert_eq!(rule.matches[4].headers, [header]);
    assert_eq!(
        accepted_condition(&mesh, Kind::GRPCRoute, "r").0,
        "true Accepted"
    );
}

#[test]
fn what_grpc_routes_may_not_say_is_answered_with_an_error() {
    for rule in [
        "filters: [{type: URLRewrite, urlRewrite: {hostname: a}}]",
        "filters: [{type: ExtensionRef, extensionRef: {}}]",
        "backendRefs: [{name: cart, port: 80, filters: [{type: RequestRedirect, requestRedirect: {scheme: https}}]}]",
        "timeouts: {request: 1s}",
        "matches: [{method: {type: Other, service: a}}]",
        "matches: [{method: {type: RegularExpression, service: '('}}]",
        "matches: [{method: {service: a, more: b}}]",
    ] {
        let spec = format!("rules: [{{{rule}}}]");
        let mesh = mesh("grpc", &[route(Kind::GRPCRoute, "r", 0, &spec)]);
        let rules = &mesh.waypoint_services[SERVICE_RECORD_NAME].routes[0].rules;
        assert!(rules[0].unsupported.is_some(), "{rule}");
        let condition = accepted_condition(&mesh, Kind::GRPCRoute, "r").0;
        assert_eq!(condition, "false UnsupportedValue", "{rule}");
    }
    // What cannot be read at all is in the way of all requests.
    for rule in [
        "matches: [{method: {service: a/b}}]",
        "matches: [{method: {method: '*'}}]",
        "matches: [{method: {}}]",
        "matches: 1",
    ] {
        let spec = format!("rules: [{{{rule}}}]");
        let mesh = mesh("grpc", &[route(Kind::GRPCRoute, "r", 0, &spec)]);
        let rules = &mesh.waypoint_services[SERVICE_RECORD_NAME].routes[0].rules;
        assert!(rules[0].matches.is_empty(), "{rule}");
        assert!(rules[0].unsupported.is_some(), "{rule}");
    }
}

#[test]
fn of_http_and_grpc_routes_the_oldest_decides_which_are_followed() {
    let rules = "rules: [{backendRefs: [{name: cart, port: 80}]}]";
    let grpc = route(Kind::GRPCRoute, "grpc", 1, rules);
    let http = route(Kind::HTTPRoute, "http", 2, rules);
    let mut mesh = mesh("http2", &[grpc, http]);
    let (condition, why) = accepted_condition(&mesh, Kind::HTTPRoute, "http");
    assert_eq!(condition, "false Conflicted");
    assert!(
        why.contains("port 80") && why.contains("GRPCRoute/shop/grpc"),
        "{why}"
    );
    assert_eq!(
        accepted_condition(&mesh, Kind::GRPCRoute, "grpc").0,
        "true Accepted"
    );
    mesh.delete(Kind::GRPCRoute, "shop", "grpc");
    assert_eq!(
        accepted_condition(&mesh, Kind::HTTPRoute, "http").0,
        "true Accepted"
    );
}

fn published_names(routes: &[StreamRoute]) -> Vec<String> {
    routes.iter().map(|route| route.name.to_string()).collect()
}

#[test]
fn connections_are_routed_by_the_first_rule() {
    let rules = "rules: [{backendRefs: [{name: cart, port: 80, weight: 0}, {name: none, port: 1}]}, {backendRefs: []}]";
    let names = "hostnames: [A.example, '*.example'], ";
    let routes = [
        route(Kind::TCPRoute, "tcp", 0, rules),
        route(Kind::TLSRoute, "tls", 0, &format!("{names}{rules}")),
    ];
    let mesh = mesh("tcp", &routes);
    let record = &mesh.waypoint_services[SERVICE_RECORD_NAME];
    assert!(record.routes.is_empty());
    assert_eq!(published_names(&record.tcp_routes), ["TCPRoute/shop/tcp"]);
    assert_eq!(published_names(&record.tls_routes), ["TLSRoute/shop/tls"]);
    let hostnames = [ArcStr::from("a.example"), ArcStr::from("*.example")];
    assert_eq!(record.tls_routes[0].hostnames, hostnames);
    for record in [&record.tcp_routes[0], &record.tls_routes[0]] {
        assert_eq!(record.unsupported, None);
        let weights: Vec<_> = record.backends.iter().map(|one| one.weight).collect();
        assert_eq!(weights, [0, 1]);
        assert!(record.backends[0].service.is_ok() && record.backends[1].service.is_err());
    }
    for (kind, name) in [(Kind::TCPRoute, "tcp"), (Kind::TLSRoute, "tls")] {
        assert_eq!(accepted_condition(&mesh, kind, name).0, "true Accepted");
        let derived_status = mesh
            .index
            .derived_status(&ObjectKey::new(kind, "shop", name));
        let (_, resolved) = &derived_status.unwrap().entries[0].conditions[1];
        assert_eq!(resolved.reason, "BackendNotFound");
        assert!(resolved.message.contains("connections is refused"));
    }
    assert!(
        mesh.problems()
            .iter()
            .any(|one| one.contains("spec.rules[1]"))
    );
}

#[test]
fn routes_of_connections_that_cannot_be_read_refuse_them() {
    for (kind, spec, hostnames) in [
        (Kind::TCPRoute, "rules: 1", &[][..]),
        (
            Kind::TCPRoute,
            "rules: [{backendRefs: [{name: cart, port: 80, weight: -1}]}]",
            &[],
        ),
        (Kind::TCPRoute, "rules: [{filters: []}]", &[]),
        (
            Kind::TLSRoute,
            "hostnames: [a.example], rules: 1",
            &["a.example"],
        ),
        // Not even whose connections they are.
        (Kind::TLSRoute, "hostnames: [a.example, '*']", &[]),
        (Kind::TLSRoute, "hostnames: ['10.0.0.1']", &[]),
        (Kind::TLSRoute, "hostnames: 1", &[]),
    ] {
        let mesh = mesh("tls", &[route(kind, "r", 0, spec)]);
        let record = &mesh.waypoint_services[SERVICE_RECORD_NAME];
        let record = record
            .tcp_routes
            .iter()
            .chain(&record.tls_routes)
            .next()
            .unwrap();
        assert!(record.unsupported.is_some(), "{kind} {spec}");
        assert_eq!(record.hostnames, hostnames, "{kind} {spec}");
    }
}

#[test]
fn ports_of_other_protocols_and_conflicting_routes_are_reported() {
    let rules = "rules: [{backendRefs: [{name: cart, port: 80}]}]";
    let tcp = |name: &str, age| route(Kind::TCPRoute, name, age, rules);
    let of = |protocol: &str, kind: Kind, name: &str, routes: &[String]| {
        accepted_condition(&mesh(protocol, routes), kind, name).0
    };
    let both = [tcp("a", 1), route(Kind::HTTPRoute, "http", 2, rules)];
    assert_eq!(
        of("http", Kind::TCPRoute, "a", &both),
        "false UnsupportedProtocol"
    );
    assert_eq!(
        of("tcp", Kind::HTTPRoute, "http", &both),
        "false UnsupportedProtocol"
    );
    assert_eq!(of("tcp", Kind::TCPRoute, "a", &both), "true Accepted");
    // Its protocol is undeclared.
    assert_eq!(of("other", Kind::TCPRoute, "a", &both), "false Conflicted");
    assert_eq!(of("other", Kind::HTTPRoute, "http", &both), "true Accepted");
    let two = [tcp("a", 2), tcp("b", 1)];
    assert_eq!(of("tcp", Kind::TCPRoute, "a", &two), "false Conflicted");
    assert_eq!(of("tcp", Kind::TCPRoute, "b", &two), "true Accepted");
}
