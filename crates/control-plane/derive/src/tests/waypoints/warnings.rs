//! Warnings about policies, settings and kinds without the expected effect at waypoints.

use ambit_k8s_api::Kind;

use super::{
    attachment::{namespace, waypoint},
    instances::effective_message,
    *,
};

fn policy(namespace: &str, spec: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: p, namespace: {namespace}}}\nspec: {{{spec}}}\n"
    )
}

fn problems_of(mesh: &TestMesh, kind: Kind, namespace: &str, name: &str) -> Vec<String> {
    let problems = mesh
        .index
        .problems_of(&ObjectKey::new(kind, namespace, name));
    let text = problems
        .iter()
        .map(|one| format!("{}: {}", one.field, one.message));
    text.collect()
}

fn policy_problem(mesh: &TestMesh, namespace: &str) -> Option<String> {
    let mut problems = problems_of(mesh, Kind::AuthorizationPolicy, namespace, "p");
    assert!(problems.len() <= 1, "{problems:?}");
    problems.pop()
}

#[test]
fn policies_that_name_callers_learn_of_the_waypoint() {
    let by = |source: &str| format!("rules: [{{}}, {{from: [{{source: {{{source}}}}}]}}]");
    let selector = "selector: {matchLabels: {app: cart}}, ";
    let selecting = |source: &str| format!("{selector}{}", by(source));
    let from = "spec.rules[1].from[0]: pods that it applies to are behind the waypoint shop/wp: ";
    for (namespace, spec, expected) in [
        ("shop", selecting("principals: [cluster.local/ns/a/sa/b]"), from),
        ("shop", selecting("notNamespaces: [a]"), from),
        ("shop", selecting("serviceAccounts: [a/b]"), from),
        ("shop", selecting("ipBlocks: [10.0.0.0/8]"), from),
        ("shop", format!("action: DENY, {}", by("namespaces: [a]")), from),
        ("istio-system", selecting("namespaces: [a]"), from),
        ("istio-system", by("namespaces: [a]"), from),
        (
            "shop",
            "rules: [{when: [{key: destination.port, values: [\"80\"]}, {key: source.namespace, values: [a]}]}]".to_owned(),
            "spec.rules[0].when[1]: pods",
        ),
        // These speak of no callers, of other pods, or of the waypoint itself.
        ("shop", "rules: [{to: [{operation: {ports: [\"80\"]}}]}]".to_owned(), ""),
        ("shop", selecting("namespaces: [a]").replace("cart", "other"), ""),
        ("bank", by("namespaces: [a]"), ""),
        ("shop", selecting("principals: [cluster.local/ns/shop/sa/wp]"), ""),
        ("shop", selecting("notPrincipals: [cluster.local/ns/shop/sa/wp]"), ""),
        ("shop", selecting("serviceAccounts: [a/b, wp]"), ""),
    ] {
        let mut mesh = TestMesh::from_yaml(&join_documents(&[CART_POD, &policy(namespace, &spec)]));
        assert_eq!(policy_problem(&mesh, namespace), None, "{spec}");
        mesh.apply(&gateway("wp", ""));
        let found = policy_problem(&mesh, namespace).unwrap_or_default();
        let is_expected = match expected {
            "" => found.is_empty(),
            expected => found.starts_with(expected) && found.contains("spec.targetRefs"),
        };
        assert!(is_expected, "{spec}: {found:?}");
        // It goes with the pods, and with the waypoint.
        mesh.delete(Kind::Pod, "shop", "cart-1");
        assert_eq!(policy_problem(&mesh, namespace), None, "{spec}");
        mesh.apply(CART_POD);
        assert_eq!(policy_problem(&mesh, namespace).unwrap_or_default(), found, "{spec}");
        mesh.delete(Kind::Gateway, "shop", "wp");
        assert_eq!(policy_problem(&mesh, namespace), None, "{spec}");
    }
}

#[test]
fn gateways_name_the_policies_that_they_make_moot() {
    let source = |name: &str| {
        format!(
            "rules: [{{from: [{{source: {{principals: [cluster.local/ns/shop/sa/{name}]}}}}]}}]"
        )
    };
    let selector = "selector: {matchLabels: {app: cart}}, ";
    let allow = policy("shop", &format!("{selector}{}", source("front")));
    let mut mesh = TestMesh::from_yaml(&join_documents(&[CART_POD, &allow, &gateway("wp", "")]));
    let is_warned = |mesh: &TestMesh| {
        let problems = problems_of(mesh, Kind::Gateway, "shop", "wp");
        problems.concat().contains("AuthorizationPolicy shop/p;")
    };
    assert!(is_warned(&mesh));
    assert!(policy_problem(&mesh, "shop").is_some());
    // One beside it that admits the waypoint.
    let admission = policy("shop", &format!("{selector}{}", source("wp")));
    let admission = admission.replace("name: p,", "name: q,");
    mesh.apply(&admission);
    assert!(!is_warned(&mesh));
    assert_eq!(policy_problem(&mesh, "shop"), None);
    mesh.delete(Kind::AuthorizationPolicy, "shop", "q");
    assert!(is_warned(&mesh));
    assert!(policy_problem(&mesh, "shop").is_some());
    // It goes with the pods.
    mesh.delete(Kind::Pod, "shop", "cart-1");
    assert!(!is_warned(&mesh));
    mesh.apply(CART_POD);
    assert!(is_warned(&mesh));
    // The copy of a DENY policy applies to its requests.
    mesh.apply(&allow.replace("{selector", "{action: DENY, selector"));
    assert!(is_warned(&mesh));
    let copy =
        "targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: wp}], action: DENY";
    mesh.apply(&policy("shop", copy).replace("name: p,", "name: p-waypoint,"));
    assert!(!is_warned(&mesh));
    mesh.delete(Kind::AuthorizationPolicy, "shop", "p");
    assert!(!is_warned(&mesh));
}

#[test]
fn services_waypoint_is_no_caller_of_pods_called_directly() {
    let spec = "rules: [{from: [{source: {namespaces: [a]}}]}]";
    let for_services = gateway("wp", ", labels: {istio.io/waypoint-for: service}");
    let mesh = TestMesh::from_yaml(&join_documents(&[
        CART_POD,
        &policy("shop", spec),
        &for_services,
    ]));
    assert_eq!(policy_problem(&mesh, "shop"), None);
}

fn configured_gateway(config: &str) -> String {
    gateway(
        "wp",
        &format!(", annotations: {{proxy.istio.io/config: {config:?}}}"),
    )
}

#[test]
fn a_gateways_own_settings_go_before_the_meshs() {
    let mut mesh = TestMesh::with_config(MeshConfig {
        trusted_proxies: 1,
        ..MeshConfig::default()
    });
    let at = "metadata.annotations[proxy.istio.io/config]";
    let number = ".gatewayTopology.numTrustedProxies: ";
    for (config, trusted, problem) in [
        (None, 1, None),
        // Nothing usable was there before: the mesh's.
        (
            Some("{gatewayTopology: {numTrustedProxies: many}}"),
            1,
            Some(number),
        ),
        (Some("gatewayTopology:\n  numTrustedProxies: 2\n"), 2, None),
        // The last usable one stays.
        (
            Some("{gatewayTopology: {numTrustedProxies: -1}}"),
            2,
            Some(number),
        ),
        (Some("gatewayTopology: ["), 2, Some(": is no YAML")),
        (
            Some("{gatewayTopology: 3}"),
            2,
            Some(".gatewayTopology: is not a map"),
        ),
        (Some("[]"), 2, Some(": is not a map")),
        (Some("{gatewayTopology: {numTrustedProxies: 0}}"), 0, None),
        (
            Some("{concurrency: 4}"),
            1,
            Some(".concurrency: has no effect"),
        ),
        (
            Some("{gatewayTopology: {numTrustedProxies: 3, proxyProtocol: {}}}"),
            3,
            Some(".gatewayTopology.proxyProtocol: has no effect"),
        ),
        (Some(""), 1, None),
        (None, 1, None),
    ] {
        mesh.apply(&config.map_or_else(|| gateway("wp", ""), configured_gateway));
        let found = mesh.waypoint_gateways["gateway shop/wp"].trusted_proxies;
        assert_eq!(found, trusted, "{config:?}");
        let warning = effective_message(&mesh);
        match problem {
            None => assert_eq!(warning, None, "{config:?}"),
            Some(problem) => {
                let warning = warning.unwrap();
                assert!(
                    warning.starts_with(&format!("{at}{problem}")),
                    "{config:?}: {warning}"
                );
            }
        }
    }
}

#[test]
fn a_gateway_that_cannot_be_used_lets_nothing_around_it() {
    let wrong = gateway("wp", ", labels: {istio.io/waypoint-for: everything}");
    // As after a restart: no usable form of it was ever seen.
    let mut mesh = TestMesh::from_yaml(&join_documents(&[CART_POD, CART_SERVICE, &wrong]));
    assert_eq!(
        waypoint(mesh.pod("cart-1")).as_deref(),
        Some("shop/unusable.wp.shop.waypoint.invalid")
    );
    assert!(mesh.waypoint_gateways.is_empty());
    mesh.apply(&gateway("wp", ""));
    let usable = Some("shop/wp.shop.svc.cluster.local");
    assert_eq!(waypoint(mesh.pod("cart-1")).as_deref(), usable);
    mesh.apply(&wrong);
    assert_eq!(
        waypoint(mesh.pod("cart-1")).as_deref(),
        usable,
        "the last form stays"
    );
    // One that is another controller's is none of ours, usable or not.
    let mesh = TestMesh::from_yaml(&join_documents(&[
        CART_POD,
        &wrong.replace("istio-waypoint", "istio"),
    ]));
    assert_eq!(waypoint(mesh.pod("cart-1")), None);
}

#[test]
fn a_class_with_a_wrong_label_stays_a_class_of_waypoints() {
    let class = "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: mine, labels: {istio.io/waypoint-for: everything}}\nspec: {controllerName: istio.io/mesh-controller}\n";
    let of_class = gateway("wp", "").replace("istio-waypoint", "mine");
    let mesh = TestMesh::from_yaml(&join_documents(&[CART_POD, &of_class, class]));
    assert_eq!(
        waypoint(mesh.pod("cart-1")).as_deref(),
        Some("shop/wp.shop.svc.cluster.local")
    );
    assert_eq!(problems_of(&mesh, Kind::GatewayClass, "", "mine").len(), 1);
}

#[test]
fn kinds_without_effect_are_named_on_their_gateways() {
    let unread = |kind: Kind, namespace: &str, name: &str| {
        let spec = match kind {
            Kind::VirtualService => "gateways: [edge]",
            _ => "any: [null]",
        };
        format!(
            "apiVersion: {}/v1\nkind: {kind}\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {{{spec}}}\n",
            kind.group()
        )
    };
    let mut mesh = TestMesh::from_yaml(&gateway("wp", ""));
    for kind in [Kind::VirtualService, Kind::EnvoyFilter] {
        for (namespace, concerns) in [("shop", true), ("istio-system", true), ("bank", false)] {
            mesh.apply(&unread(kind, namespace, "x"));
            let warning = effective_message(&mesh);
            let expected = format!("{kind} {namespace}/x: such objects have no effect");
            assert_eq!(warning.is_some(), concerns, "{kind} {namespace}");
            assert!(warning.unwrap_or_default().starts_with(&expected) || !concerns);
            mesh.delete(kind, namespace, "x");
            assert_eq!(effective_message(&mesh), None);
        }
    }
    // A namespace that uses the waypoint is concerned as long as it does.
    mesh.apply(&unread(Kind::VirtualService, "bank", "x"));
    let bound = CART_SERVICE.replace(
        "namespace: shop",
        "namespace: bank, labels: {istio.io/use-waypoint: wp, istio.io/use-waypoint-namespace: shop}",
    );
    mesh.apply(&bound);
    assert!(
        effective_message(&mesh)
            .unwrap()
            .starts_with("VirtualService bank/x")
    );
    mesh.delete(Kind::Service, "bank", "cart");
    assert_eq!(effective_message(&mesh), None);
    mesh.apply(
        &namespace("istio.io/use-waypoint: wp, istio.io/use-waypoint-namespace: shop")
            .replace("name: shop", "name: bank"),
    );
    assert!(effective_message(&mesh).is_some());
}
