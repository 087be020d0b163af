//! Routes with hosts and ServiceEntries as backends: resolution, permission, and changes that mark the routes as stale.

use ambit_k8s_api::Kind;

use super::{
    routes_and_conditions::{PARENT, backend, grant, parent_conditions, route, routes},
    *,
};

fn entry(namespace: &str, name: &str, spec: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec: {{ports: [{{number: 80, name: http, protocol: HTTP}}], resolution: STATIC, \
         endpoints: [{{address: 192.0.2.1}}], {spec}}}\n"
    )
}

/// MeshConfig by which ServiceEntries are visible in all namespaces by default.
const EXPORT_ALL_CONFIG: &str = "apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: 'defaultServiceExportTo: [\"*\"]'}
";

/// Builds a mesh with a route of `shop` that has one backend.
fn mesh_with_route_to(backend: &str) -> TestMesh {
    let spec = format!("{PARENT}, rules: [{{backendRefs: [{{{backend}, port: 80}}]}}]");
    TestMesh::from_yaml(&join_documents(&[
        EXPORT_ALL_CONFIG,
        CART_SERVICE,
        CART_POD,
        &gateway("wp", ""),
        &route("r", "shop", &spec),
    ]))
}

fn host(name: &str) -> String {
    format!("group: networking.istio.io, kind: Hostname, name: {name}")
}

/// Returns the resolved backend, or the route's status condition.
fn backends_of(mesh: &TestMesh) -> String {
    match &routes(mesh)[0].rules[0].backends[0].service {
        Ok(name) => name.to_string(),
        Err(_) => parent_conditions(mesh, "shop", "r")[1].clone(),
    }
}

const BACKEND_NOT_FOUND: &str = "ResolvedRefs=false BackendNotFound";
const REF_NOT_PERMITTED: &str = "ResolvedRefs=false RefNotPermitted";

#[test]
fn a_host_is_the_one_that_the_routes_namespace_sees() {
    let mut mesh = mesh_with_route_to(&host("API.example"));
    assert_eq!(backends_of(&mesh), BACKEND_NOT_FOUND);
    let of = |namespace: &str, more: &str| {
        entry(namespace, "api", &format!("hosts: [api.example]{more}"))
    };
    let changed = mesh.apply(&of("bank", ""));
    assert!(!changed.is_empty());
    assert_eq!(backends_of(&mesh), "bank/api.example");
    assert_eq!(
        parent_conditions(&mesh, "shop", "r")[1],
        "ResolvedRefs=true ResolvedRefs"
    );
    // One that is not shared is not seen.
    mesh.apply(&of("bank", ", exportTo: ['.']"));
    assert_eq!(backends_of(&mesh), BACKEND_NOT_FOUND);
    mesh.apply(&of("bank", ""));
    // The own namespace's goes first.
    mesh.apply(&of("shop", ", exportTo: ['.']"));
    assert_eq!(backends_of(&mesh), "shop/api.example");
    mesh.delete(Kind::ServiceEntry, "shop", "api");
    assert_eq!(backends_of(&mesh), "bank/api.example");
    // The administrator may show entries to their own namespaces alone.
    mesh.delete(Kind::ConfigMap, "istio-system", "istio");
    assert_eq!(backends_of(&mesh), BACKEND_NOT_FOUND);
    mesh.apply(EXPORT_ALL_CONFIG);
    assert_eq!(backends_of(&mesh), "bank/api.example");
    mesh.apply(&of("bank", "").replace("number: 80", "number: 81"));
    assert_eq!(backends_of(&mesh), BACKEND_NOT_FOUND);
    mesh.delete(Kind::ServiceEntry, "bank", "api");
    assert_eq!(backends_of(&mesh), BACKEND_NOT_FOUND);
}

#[test]
fn the_host_of_a_service_needs_the_grant_that_the_service_needs() {
    let mut mesh = mesh_with_route_to(&host("till.bank.svc.cluster.local"));
    assert_eq!(backends_of(&mesh), BACKEND_NOT_FOUND);
    mesh.apply(&backend("till", 80).replace("namespace: shop", "namespace: bank"));
    assert_eq!(backends_of(&mesh), REF_NOT_PERMITTED);
    let from = "{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}";
    mesh.apply(&grant(
        "bank",
        from,
        "{group: '', kind: Service, name: till}",
    ));
    assert_eq!(backends_of(&mesh), "bank/till.bank.svc.cluster.local");
    mesh.apply(&grant(
        "bank",
        from,
        "{group: '', kind: Service, name: other}",
    ));
    assert_eq!(backends_of(&mesh), REF_NOT_PERMITTED);
    // Of its own namespace, it may.
    let mut own = mesh_with_route_to(&host("till.shop.svc.cluster.local"));
    own.apply(&backend("till", 80));
    assert_eq!(backends_of(&own), "shop/till.shop.svc.cluster.local");
}

#[test]
fn shared_entry_with_one_host_is_routable() {
    let of = |namespace: &str| {
        format!("group: networking.istio.io, kind: ServiceEntry, name: api, namespace: {namespace}")
    };
    let mut mesh = mesh_with_route_to(&of("bank"));
    let entry = |spec: &str| entry("bank", "api", spec);
    mesh.apply(&entry("hosts: [api.example]"));
    assert_eq!(backends_of(&mesh), "bank/api.example");
    mesh.apply(&entry("hosts: [api.example], exportTo: ['.']"));
    assert_eq!(backends_of(&mesh), REF_NOT_PERMITTED);
    mesh.apply(&entry("hosts: [api.example]"));
    assert_eq!(backends_of(&mesh), "bank/api.example");
    mesh.delete(Kind::ConfigMap, "istio-system", "istio");
    assert_eq!(backends_of(&mesh), REF_NOT_PERMITTED);
    mesh.apply(EXPORT_ALL_CONFIG);
    mesh.apply(&entry("hosts: [api.example, other.example]"));
    assert_eq!(backends_of(&mesh), BACKEND_NOT_FOUND);
    mesh.apply(&entry("hosts: [api.example]"));
    assert_eq!(backends_of(&mesh), "bank/api.example");
    // Another object makes the record of its host.
    let older = entry("hosts: [api.example]").replace(
        "{name: api, namespace: bank}",
        "{name: older, namespace: bank, creationTimestamp: '1999-01-01T00:00:00Z'}",
    );
    let younger = entry("hosts: [api.example]").replace(
        "{name: api, namespace: bank}",
        "{name: api, namespace: bank, creationTimestamp: '2020-01-01T00:00:00Z'}",
    );
    mesh.apply(&younger);
    mesh.apply(&older);
    assert_eq!(backends_of(&mesh), BACKEND_NOT_FOUND);
    mesh.delete(Kind::ServiceEntry, "bank", "older");
    assert_eq!(backends_of(&mesh), "bank/api.example");
}

#[test]
fn rule_for_a_routed_host_goes_to_its_waypoint() {
    let mut mesh = mesh_with_route_to(&host("api.example"));
    mesh.apply(&entry("bank", "api", "hosts: [api.example]"));
    let rule = "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: api, namespace: bank}\n\
                spec: {host: api.example, trafficPolicy: {connectionPool: {http: {maxRetries: 7}}}}\n";
    mesh.apply(rule);
    let name = "shop/wp to bank/api.example";
    assert_eq!(mesh.waypoint_destinations[name].policy.limits.retries, 7);
    mesh.delete(Kind::HTTPRoute, "shop", "r");
    assert!(mesh.waypoint_destinations.is_empty());
}

#[test]
fn values_that_are_no_host_are_reported() {
    for name in ["'*.example'", "''", "a b"] {
        let mesh = mesh_with_route_to(&host(name));
        assert!(
            mesh.problems()[0].contains("is not a host name"),
            "{name}: {:?}",
            mesh.problems()
        );
    }
}

/// Returns the reason in a waypoint's record that refuses requests for a host.
fn refusal_reason(mesh: &TestMesh, waypoint: &str, service: &str) -> Option<String> {
    let record = mesh
        .waypoint_services
        .get(&format!("shop/{waypoint} {service}"))?;
    let (http, stream) = (record.routes.first()?, record.tcp_routes.first()?);
    let why = http.rules[0].unsupported.as_ref();
    assert_eq!(why, stream.unsupported.as_ref());
    why.map(ToString::to_string)
}

#[test]
fn waypoint_of_a_wildcard_refuses_hosts_below_that_others_serve() {
    let of = |namespace: &str, name: &str, host: &str, waypoint: &str| {
        let spec = format!("hosts: ['{host}']");
        let label = format!(
            "labels: {{istio.io/use-waypoint: {waypoint}, istio.io/use-waypoint-namespace: shop}}"
        );
        entry(namespace, name, &spec).replace("metadata: {", &format!("metadata: {{{label}, "))
    };
    let open = |name: &str| {
        gateway(name, "").replace(
            "protocol: HBONE",
            "protocol: HBONE, allowedRoutes: {namespaces: {from: All}}",
        )
    };
    let base = [
        open("wp"),
        open("xtra"),
        of("shop", "wild", "*.example.com", "wp"),
        of("shop", "nested", "*.b.example.com", "xtra"),
    ];
    let base: Vec<_> = base.iter().map(String::as_str).collect();
    let mut mesh = TestMesh::from_yaml(&join_documents(&base));
    let host = "shop/api.example.com";
    assert!(refusal_reason(&mesh, "wp", "shop/*.b.example.com").is_some());
    assert_eq!(refusal_reason(&mesh, "xtra", "shop/*.example.com"), None);

    mesh.apply(&of("shop", "api", "api.example.com", "xtra"));
    let why = refusal_reason(&mesh, "wp", host).unwrap();
    assert!(
        why.starts_with("api.example.com has another waypoint"),
        "{why}"
    );
    assert_eq!(refusal_reason(&mesh, "xtra", host), None, "its own");
    assert!(
        mesh.waypoint_services
            .contains_key(&format!("shop/xtra {host}"))
    );

    mesh.apply(&of("shop", "api", "api.example.com", "wp"));
    assert_eq!(refusal_reason(&mesh, "wp", host), None, "served there");
    // A waypoint that is not there refuses everything, so at the wildcard's, too.
    mesh.apply(&of("shop", "api", "api.example.com", "absent"));
    assert!(refusal_reason(&mesh, "wp", host).is_some());
    mesh.apply(&entry("shop", "api", "hosts: [api.example.com]"));
    assert_eq!(
        refusal_reason(&mesh, "wp", host),
        None,
        "without a waypoint"
    );

    // The wildcard goes to another waypoint, and away.
    mesh.apply(&of("shop", "api", "api.example.com", "xtra"));
    assert!(refusal_reason(&mesh, "wp", host).is_some());
    mesh.apply(&of("shop", "wild", "*.example.com", "xtra"));
    assert_eq!(refusal_reason(&mesh, "wp", host), None);
    mesh.apply(&of("shop", "wild", "*.example.com", "wp"));
    assert!(refusal_reason(&mesh, "wp", host).is_some());
    mesh.delete(Kind::ServiceEntry, "shop", "wild");
    assert_eq!(refusal_reason(&mesh, "wp", host), None);

    // Of two namespaces that do not see each other's entries, none refuses the other's.
    mesh.apply(&of("shop", "wild", "*.example.com", "wp"));
    mesh.delete(Kind::ServiceEntry, "shop", "api");
    mesh.apply(&of("bank", "api", "api.example.com", "xtra"));
    assert_eq!(refusal_reason(&mesh, "wp", "bank/api.example.com"), None);
    mesh.apply(EXPORT_ALL_CONFIG);
    assert!(refusal_reason(&mesh, "wp", "bank/api.example.com").is_some());
}
