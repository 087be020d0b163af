//! Node proxies of other implementations, which do not enforce that connections come through a waypoint.

use ambit_k8s_api::Kind;

use super::{instances::effective_message, *};

fn proxy(name: &str, namespace: &str, labels: &str, node: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {namespace}, labels: {{{labels}}}}}\n\
         spec: {{nodeName: {node}, serviceAccountName: ztunnel, hostNetwork: true, containers: []}}\n\
         status: {{phase: Running}}\n"
    )
}

#[test]
fn gateway_names_nodes_where_another_proxy_lets_callers_pass() {
    let mut mesh = TestMesh::from_yaml(&join_documents(&[
        CART_POD,
        CART_SERVICE,
        &gateway("wp", ""),
    ]));
    let ours = "app: ztunnel, app.kubernetes.io/part-of: ambit";
    mesh.apply(&proxy("ours", "istio-system", ours, "n1"));
    assert_eq!(effective_message(&mesh), None);
    // It serves no pod of the waypoint, or is none.
    mesh.apply(&proxy("far", "istio-system", "app: ztunnel", "n2"));
    mesh.apply(&proxy("fake", "shop", "app: ztunnel", "n1"));
    assert_eq!(effective_message(&mesh), None);
    mesh.apply(&proxy("zt", "istio-system", "app: ztunnel", "n1"));
    let message = effective_message(&mesh).unwrap();
    assert!(
        message.contains("the node proxy of n1 is another"),
        "{message}"
    );
    let survey = mesh.index.all_problems();
    let is_listed = |one: &Problem| one.object.kind == Kind::Gateway && one.message == message;
    assert!(survey.iter().any(is_listed), "{survey:?}");
    // It goes with the pods there, and with the proxy.
    mesh.apply(&CART_POD.replace("nodeName: n1", "nodeName: n3"));
    assert_eq!(effective_message(&mesh), None);
    mesh.apply(CART_POD);
    assert!(effective_message(&mesh).is_some());
    mesh.delete(Kind::Pod, "istio-system", "zt");
    assert_eq!(effective_message(&mesh), None);
}
