//! ReferenceGrants: a route needs one for Services of other namespaces as backends, also if the Service is a parent of
//! the route, except for requests to that parent.

use super::{routes_and_conditions::backend, *};

const KINDS: [&str; 4] = ["HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute"];
const OWN_SERVICE: &str = "{group: '', kind: Service, name: cart}";
const FOREIGN_SERVICE: &str = "{group: '', kind: Service, name: till, namespace: bank}";
const OTHER_FOREIGN_SERVICE: &str = "{group: '', kind: Service, name: vault, namespace: bank}";

/// Builds a mesh with the Services `shop/cart`, `bank/till` and `bank/vault`, a waypoint in each namespace, and a route
/// of `shop`.
fn mesh_with_route(kind: &str, parents: &[&str], rule: &str) -> TestMesh {
    let of_bank = |text: String| text.replace("namespace: shop", "namespace: bank");
    let route = format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\nmetadata: {{name: r, namespace: shop}}\n\
         spec: {{parentRefs: [{}], rules: [{rule}]}}\n",
        parents.join(", ")
    );
    // Connections, rather than requests, need a port that speaks no HTTP.
    let protocol = match kind {
        "HTTPRoute" => "http",
        "GRPCRoute" => "grpc",
        _ => "tcp",
    };
    let services = [
        CART_SERVICE.to_owned(),
        of_bank(backend("till", 80)),
        of_bank(backend("vault", 81)),
    ];
    let services = services.map(|one| one.replace("http-web", &format!("{protocol}-web")));
    let mut documents = services.to_vec();
    documents.extend([
        gateway("wp", ""),
        of_bank(gateway("wp", "")),
        CART_POD.to_owned(),
    ]);
    documents.push(of_bank(
        CART_POD
            .replace("cart-1", "till-1")
            .replace("10.1.2.3", "10.1.2.4")
            .replace("fd00::3", "fd00::4")
            .replace("uid: u1", "uid: u2"),
    ));
    documents.push(route);
    let documents: Vec<&str> = documents.iter().map(String::as_str).collect();
    TestMesh::from_yaml(&join_documents(&documents))
}

/// Returns the backends of requests to a Service; `None` for a backend that cannot be resolved.
fn backends_of(mesh: &TestMesh, kind: &str, to: &str) -> Vec<Option<String>> {
    let namespace = to.rsplit('.').nth(3).expect("a cluster name");
    let served = &mesh.waypoint_services[&format!("{namespace}/wp {namespace}/{to}")];
    let text =
        |service: &Result<NamespacedHostname, _>| service.as_ref().ok().map(ToString::to_string);
    if ["HTTPRoute", "GRPCRoute"].contains(&kind) {
        let rules = served.routes.iter().flat_map(|route| &route.rules);
        return rules
            .flat_map(|rule| &rule.backends)
            .map(|one| text(&one.service))
            .collect();
    }
    let routes = served.tcp_routes.iter().chain(&served.tls_routes);
    routes
        .flat_map(|route| &route.backends)
        .map(|one| text(&one.service))
        .collect()
}

const CART_HOST: &str = "cart.shop.svc.cluster.local";
const TILL_HOST: &str = "till.bank.svc.cluster.local";

/// Returns backend references to a Service: by its object, and by its host.
fn reference_forms(service: &str) -> [String; 2] {
    [
        format!("{{name: {service}, namespace: bank, port: PORT}}"),
        format!(
            "{{group: networking.istio.io, kind: Hostname, name: {service}.bank.svc.cluster.local, port: PORT}}"
        ),
    ]
}

fn grant(kind: &str, service: &str) -> String {
    super::routes_and_conditions::grant(
        "bank",
        &format!("{{group: gateway.networking.k8s.io, kind: {kind}, namespace: shop}}"),
        &format!("{{group: '', kind: Service, name: {service}}}"),
    )
}

#[test]
fn a_parent_is_a_backend_without_a_grant_for_its_own_requests_alone() {
    for kind in KINDS {
        for backend in reference_forms("till").map(|form| form.replace("PORT", "80")) {
            for parents in [
                [OWN_SERVICE, FOREIGN_SERVICE].as_slice(),
                &[FOREIGN_SERVICE, OWN_SERVICE],
                &[OWN_SERVICE, FOREIGN_SERVICE, OTHER_FOREIGN_SERVICE],
                // Even one with a port that the Service has not.
                &[
                    OWN_SERVICE,
                    FOREIGN_SERVICE,
                    "{group: '', kind: Service, name: till, namespace: bank, port: 99}",
                ],
            ] {
                let rule = format!("{{backendRefs: [{backend}]}}");
                let mut mesh = mesh_with_route(kind, parents, &rule);
                let what = format!("{kind} to {backend} of {parents:?}");
                let till = Some(format!("bank/{TILL_HOST}"));
                assert_eq!(backends_of(&mesh, kind, CART_HOST), [None], "{what}");
                assert_eq!(
                    backends_of(&mesh, kind, TILL_HOST),
                    std::slice::from_ref(&till),
                    "{what}"
                );
                mesh.apply(&grant(kind, "vault"));
                assert_eq!(backends_of(&mesh, kind, CART_HOST), [None], "{what}");
                mesh.apply(&grant(kind, "till"));
                assert_eq!(
                    backends_of(&mesh, kind, CART_HOST),
                    std::slice::from_ref(&till),
                    "{what}"
                );
                assert_eq!(backends_of(&mesh, kind, TILL_HOST), [till], "{what}");
                mesh.delete(ambit_k8s_api::Kind::ReferenceGrant, "bank", "g");
                assert_eq!(backends_of(&mesh, kind, CART_HOST), [None], "{what}");
            }
        }
    }
}

#[test]
fn a_foreign_parent_does_not_lead_to_its_neighbours() {
    for kind in KINDS {
        for backend in reference_forms("vault").map(|form| form.replace("PORT", "81")) {
            for parents in [
                [FOREIGN_SERVICE].as_slice(),
                &[FOREIGN_SERVICE, OTHER_FOREIGN_SERVICE],
                &[OTHER_FOREIGN_SERVICE, OWN_SERVICE, FOREIGN_SERVICE],
            ] {
                let rule = format!("{{backendRefs: [{backend}]}}");
                let mesh = mesh_with_route(kind, parents, &rule);
                assert_eq!(
                    backends_of(&mesh, kind, TILL_HOST),
                    [None],
                    "{kind} {backend} {parents:?}"
                );
            }
        }
    }
}

#[test]
fn mirrors_need_the_grant_that_backends_need() {
    let mirrors = |mesh: &TestMesh, to: &str| -> usize {
        let namespace = to.rsplit('.').nth(3).expect("a cluster name");
        let served = &mesh.waypoint_services[&format!("{namespace}/wp {namespace}/{to}")];
        let rules = served.routes.iter().flat_map(|route| &route.rules);
        let of_backends = |rule: &ambit_model::HttpRouteRule| -> Vec<ambit_model::HttpFilter> {
            let of_backends = rule.backends.iter().flat_map(|one| one.filters.clone());
            rule.filters.iter().cloned().chain(of_backends).collect()
        };
        rules.flat_map(of_backends).count()
    };
    for kind in ["HTTPRoute", "GRPCRoute"] {
        for backend in reference_forms("till").map(|form| form.replace("PORT", "80")) {
            let mirror = format!(
                "filters: [{{type: RequestMirror, requestMirror: {{backendRef: {backend}}}}}]"
            );
            for rule in [
                format!("{{{mirror}, backendRefs: [{{name: cart, port: 80}}]}}"),
                format!("{{backendRefs: [{{name: cart, port: 80, {mirror}}}]}}"),
            ] {
                let mut mesh = mesh_with_route(kind, &[OWN_SERVICE, FOREIGN_SERVICE], &rule);
                assert_eq!(mirrors(&mesh, CART_HOST), 0, "{kind} {rule}");
                assert_eq!(mirrors(&mesh, TILL_HOST), 1, "{kind} {rule}");
                mesh.apply(&grant(kind, "till"));
                assert_eq!(mirrors(&mesh, CART_HOST), 1, "{kind} {rule}");
            }
        }
    }
}

#[test]
fn each_parent_has_its_own_condition() {
    let mesh = mesh_with_route(
        "HTTPRoute",
        &[OWN_SERVICE, FOREIGN_SERVICE],
        "{backendRefs: [{name: till, namespace: bank, port: 80}]}",
    );
    let key = ObjectKey::new(ambit_k8s_api::Kind::HTTPRoute, "shop", "r");
    let derived_status = mesh.index.derived_status(&key).unwrap();
    let resolved = derived_status.entries.iter().map(|part| {
        let (_, condition) = &part.conditions[1];
        (condition.is_true, condition.reason)
    });
    let resolved: Vec<_> = resolved.collect();
    assert_eq!(
        resolved,
        [(false, "RefNotPermitted"), (true, "ResolvedRefs")]
    );
}
