//! Survey of all problems of a mesh.

use super::*;

const OBJECTS: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {istio.io/use-waypoint: gone}}
---
apiVersion: v1
kind: Pod
metadata: {name: lost, namespace: shpo}
spec: {nodeName: n1, containers: []}
---
apiVersion: v1
kind: Pod
metadata: {name: bound, namespace: shop, labels: {istio.io/use-waypoint: nowhere}}
spec: {nodeName: n1, containers: []}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.0.0.9, selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec: {gatewayClassName: nobodys, listeners: [{name: a, port: 80, protocol: HTTP}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: wp, namespace: shop}
spec: {gatewayClassName: istio-waypoint, listeners: [{name: odd, port: 80, protocol: HTTP}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: r, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: web}]
  rules: [{backendRefs: [{name: missing, port: 80}]}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: vs, namespace: shop}
spec: {hosts: [web], gateways: [edge]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: addresses, namespace: shop}
spec: {rules: [{from: [{source: {ipBlocks: [10.0.0.300]}}]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: layers, namespace: shop}
spec: {action: DENY, rules: [{to: [{operation: {methods: [GET]}}]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: schemes, namespace: shop}
spec: {rules: [{from: [{source: {principals: ["spiffe://cluster.local/ns/a/sa/b"]}}]}]}
"#;

#[test]
fn survey_lists_problems_with_and_without_conditions() {
    let mesh = TestMesh::from_yaml(OBJECTS);
    let survey = mesh.index.all_problems();
    let has = |object: &str, field: &str, message: &str| {
        survey.iter().any(|one| {
            one.object.to_string() == object
                && one.field.contains(field)
                && one.message.contains(message)
        })
    };
    for (object, field, message) in [
        (
            "Namespace shop",
            "istio.io/use-waypoint",
            "there is no Gateway shop/gone",
        ),
        (
            "Pod shop/bound",
            "istio.io/use-waypoint",
            "there is no Gateway shop/nowhere",
        ),
        (
            "Pod shpo/lost",
            "metadata.namespace",
            "there is no Namespace shpo",
        ),
        (
            "Service shop/web",
            "WaypointBound",
            "there is no such Gateway",
        ),
        (
            "Gateway shop/edge",
            "spec.gatewayClassName",
            "there is no GatewayClass nobodys",
        ),
        (
            "Gateway shop/wp",
            "status.listeners[odd].Accepted",
            "exactly one listener",
        ),
        (
            "HTTPRoute shop/r",
            "status.parents[Service web].ResolvedRefs",
            "missing",
        ),
        ("VirtualService shop/vs", "ambit.io/Used", "no effect"),
        (
            "AuthorizationPolicy shop/addresses",
            "ipBlocks[0]",
            "10.0.0.300",
        ),
        (
            "AuthorizationPolicy shop/layers",
            "spec.rules[0]",
            "only be evaluated by a waypoint",
        ),
        (
            "AuthorizationPolicy shop/schemes",
            "principals[0]",
            "spiffe://",
        ),
    ] {
        assert!(has(object, field, message), "{object} {field}: {survey:#?}");
    }
    assert!(survey.is_sorted_by_key(|one| one.object.clone()));
}

#[test]
fn survey_of_a_mesh_without_faults_is_empty() {
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n";
    let mesh = TestMesh::from_yaml(&format!("{namespace}---{CART_POD}"));
    assert_eq!(mesh.index.all_problems(), []);
}
