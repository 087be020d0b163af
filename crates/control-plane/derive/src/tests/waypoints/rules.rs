//! Layer 7 rules in the workload record of a pod, for connections that bypass the pod's waypoint.

use ambit_k8s_api::Kind;
use ambit_model::{StringMatch, WaypointRule};

use super::*;

const GATEWAY_TARGET: &str = "{group: gateway.networking.k8s.io, kind: Gateway, name: wp}";
const SERVICE_TARGET: &str = "{kind: Service, name: cart}";

fn policy(target: &str, more: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: p, namespace: shop}}\n\
         spec: {{targetRefs: [{target}], {more}}}\n"
    )
}

fn pod_rules(mesh: &TestMesh) -> Option<Vec<WaypointRule>> {
    let waypoint = mesh.pod("cart-1").endpoint_waypoint.as_ref();
    waypoint.and_then(|waypoint| waypoint.rules.clone())
}

/// Returns the target ports of the pod's services.
fn ports_of_service(mesh: &TestMesh) -> Vec<u16> {
    let services = mesh.pod("cart-1").services.values();
    let mut ports: Vec<u16> = services
        .flat_map(|map| map.iter().map(|(_, target)| *target))
        .collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

#[test]
fn rules_come_and_go_with_the_objects_that_are_attached() {
    let mut mesh = TestMesh::from_yaml(&join_documents(&[
        CART_SERVICE,
        CART_POD,
        &gateway("wp", ""),
    ]));
    assert_eq!(pod_rules(&mesh), Some(vec![]));
    let at_service = WaypointRule {
        ports: ports_of_service(&mesh),
        ..WaypointRule::default()
    };
    assert!(!at_service.ports.is_empty());
    let everything = WaypointRule::default();
    let object = |kind: &str, version: &str, target: &str, more: &str| {
        format!(
            "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: p, namespace: shop}}\n\
             spec: {{targetRefs: [{target}]{more}}}\n"
        )
    };
    let jwt = "RequestAuthentication";
    for (kind, yaml, expected) in [
        (
            Kind::AuthorizationPolicy,
            policy(GATEWAY_TARGET, "rules: [{}]"),
            &everything,
        ),
        (
            Kind::AuthorizationPolicy,
            policy(SERVICE_TARGET, "rules: [{}]"),
            &at_service,
        ),
        (
            Kind::RequestAuthentication,
            object(jwt, "security.istio.io/v1", GATEWAY_TARGET, ""),
            &everything,
        ),
        (
            Kind::RequestAuthentication,
            object(jwt, "security.istio.io/v1", SERVICE_TARGET, ""),
            &at_service,
        ),
        (
            Kind::WasmPlugin,
            object(
                "WasmPlugin",
                "extensions.istio.io/v1alpha1",
                GATEWAY_TARGET,
                ", url: 'oci://registry.example/p'",
            ),
            &everything,
        ),
    ] {
        mesh.apply(&yaml);
        assert_eq!(
            pod_rules(&mesh).as_ref(),
            Some(&vec![expected.clone()]),
            "{yaml}"
        );
        mesh.delete(kind, "shop", "p");
        assert_eq!(pod_rules(&mesh), Some(vec![]), "{yaml}");
    }
}

#[test]
fn a_policy_is_narrowed_to_what_it_names() {
    let named = |text: &str| vec![StringMatch::Exact(text.into())];
    let a = "from: [{source: {principals: [cluster.local/ns/a/sa/a]}}]";
    let everything = WaypointRule::default();
    let of_a = WaypointRule {
        principals: named("cluster.local/ns/a/sa/a"),
        ..WaypointRule::default()
    };
    let of_namespace = WaypointRule {
        namespaces: named("a"),
        ..WaypointRule::default()
    };
    let at_9999 = WaypointRule {
        ports: vec![9999],
        ..of_a.clone()
    };
    for (more, expected) in [
        (
            format!("action: DENY, rules: [{{{a}}}]"),
            vec![of_a.clone()],
        ),
        (format!("action: AUDIT, rules: [{{{a}}}]"), vec![of_a]),
        // What an ALLOW policy does not name, it refuses.
        (
            format!("action: ALLOW, rules: [{{{a}}}]"),
            vec![everything.clone()],
        ),
        (
            "action: DENY, rules: [{from: [{source: {namespaces: [a]}}]}]".to_owned(),
            vec![of_namespace],
        ),
        (
            format!("action: DENY, rules: [{{{a}, to: [{{operation: {{ports: ['9999']}}}}]}}]"),
            vec![at_9999],
        ),
        // Named by something that node proxies do not compare.
        (
            "action: DENY, rules: [{from: [{source: {notNamespaces: [a]}}]}]".to_owned(),
            vec![everything.clone()],
        ),
        (
            "action: DENY, rules: [{to: [{operation: {paths: [/x]}}]}]".to_owned(),
            vec![everything],
        ),
        ("action: DENY".to_owned(), vec![]),
    ] {
        let mut mesh = TestMesh::from_yaml(&join_documents(&[
            CART_SERVICE,
            CART_POD,
            &gateway("wp", ""),
        ]));
        mesh.apply(&policy(GATEWAY_TARGET, &more));
        assert_eq!(pod_rules(&mesh), Some(expected), "{more}");
    }
}

#[test]
fn rules_are_unknown_where_other_namespaces_may_have_some() {
    let mut mesh = TestMesh::from_yaml(&join_documents(&[
        CART_SERVICE,
        CART_POD,
        &gateway("wp", ""),
    ]));
    let grant = "apiVersion: gateway.networking.k8s.io/v1beta1\nkind: ReferenceGrant\n\
                 metadata: {name: g, namespace: shop}\n\
                 spec: {from: [{group: '', kind: Service, namespace: bank}], to: [{group: '', kind: Pod}]}\n";
    mesh.apply(grant);
    assert_eq!(pod_rules(&mesh), None);
    mesh.delete(Kind::ReferenceGrant, "shop", "g");
    assert_eq!(pod_rules(&mesh), Some(vec![]));
}

#[test]
fn a_copy_concerns_no_older_connection_while_the_pod_meets_the_original() {
    let waypoint = gateway("wp", "");
    let rule = "action: DENY, rules: [{from: [{source: {namespaces: [legacy]}}]}]";
    let copy = policy(GATEWAY_TARGET, rule).replace(
        "{name: p, ",
        "{name: p, annotations: {ambit.io/migrated-from: callers}, ",
    );
    let original = |more: &str| {
        format!(
            "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n\
             metadata: {{name: callers, namespace: shop{more}}}\nspec: {{{rule}}}\n"
        )
    };
    let of_pods = original("");
    let mut mesh = TestMesh::from_yaml(&join_documents(&[
        CART_SERVICE,
        CART_POD,
        &waypoint,
        &copy,
        &of_pods,
    ]));
    assert_eq!(pod_rules(&mesh), Some(vec![]));
    // As a dry run, the original refuses no caller.
    mesh.apply(&original(", annotations: {istio.io/dry-run: \"true\"}"));
    assert_eq!(pod_rules(&mesh).unwrap().len(), 1);
    mesh.apply(&of_pods);
    assert_eq!(pod_rules(&mesh), Some(vec![]));
    // The copy has more rules than the original from now on.
    mesh.apply(&copy.replace("legacy", "legacy, store"));
    assert_eq!(pod_rules(&mesh).unwrap().len(), 1);
    mesh.apply(&copy);
    assert_eq!(pod_rules(&mesh), Some(vec![]));
    mesh.apply(&of_pods.replace("spec: {", "spec: {selector: {matchLabels: {app: other}}, "));
    assert_eq!(pod_rules(&mesh).unwrap().len(), 1);
    mesh.apply(&of_pods);
    mesh.delete(Kind::AuthorizationPolicy, "shop", "callers");
    assert_eq!(pod_rules(&mesh).unwrap().len(), 1);
}
