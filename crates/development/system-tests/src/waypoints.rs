//! Starts labs whose namespace `shop` has a waypoint.

use ambit_lab::Options;

use crate::{CLIENT_AND_SERVER, Mesh, options, wait_until};

/// Manifest of the Gateway `shop/waypoint`.
pub const GATEWAY: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: waypoint, namespace: shop}
spec:
  gatewayClassName: istio-waypoint
  listeners: [{name: mesh, port: 15008, protocol: HBONE}]
";

/// Returns the manifest of a pod (`namespace/name`) without a program, whose ports the test serves ([`Mesh::serve`]).
pub fn idle_pod(pod: &str, node: &str, labels: &str) -> String {
    let (namespace, name) = pod.split_once('/').unwrap_or(("default", pod));
    format!(
        "
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {namespace}, labels: {{{labels}}}}}
spec:
  nodeName: {node}
  serviceAccountName: {name}
  containers: [{{name: main, image: none, command: [$LAB_TOOL, sleep]}}]
"
    )
}

/// Starts a mesh of [`CLIENT_AND_SERVER`] with a waypoint, and `more` manifests; returns the mesh and the waypoint's
/// address once the clients' node proxies know the waypoint.
pub fn with_waypoint(more: &str) -> (Mesh, String) {
    with_waypoint_options(more, options())
}

/// Starts a mesh like [`with_waypoint`], with other options.
pub fn with_waypoint_options(more: &str, options: Options) -> (Mesh, String) {
    with_gateway(GATEWAY, more, options)
}

/// Starts a mesh like [`with_waypoint_options`], with another Gateway `shop/waypoint` than [`GATEWAY`].
pub fn with_gateway(gateway: &str, more: &str, options: Options) -> (Mesh, String) {
    let mesh = Mesh::up_with(&format!("{CLIENT_AND_SERVER}\n---{gateway}{more}"), options);
    let address = mesh.ip("shop/waypoint").to_string();
    let direct = format!("http://{}:8080/", mesh.ip("shop/server"));
    for client in ["shop/client", "legacy/client"] {
        wait_until_via_waypoint(&mesh, &address, client, &direct);
    }
    wait_until_via_waypoint(&mesh, &address, "shop/client", "http://server.shop/");
    (mesh, address)
}

/// Waits until requests of the client for `url` reach the server from the waypoint.
#[track_caller]
pub fn wait_until_via_waypoint(mesh: &Mesh, waypoint: &str, client: &str, url: &str) {
    wait_until("requests go through the waypoint", || {
        let answer = mesh.get(client, url);
        answer.succeeded() && answer.body.contains(&format!("called by {waypoint}"))
    });
}

/// Returns whether an HTTP/1.1 response is complete with its body.
pub fn is_complete_response(answer: &str) -> bool {
    let Some((head, body)) = answer.split_once("\r\n\r\n") else {
        return false;
    };
    if head
        .lines()
        .any(|line| line == "transfer-encoding: chunked")
    {
        let has_last = body.starts_with("0\r\n") || body.contains("\r\n0\r\n");
        return has_last && body.ends_with("\r\n\r\n");
    }
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    length.is_some_and(|length| length.parse().is_ok_and(|length| body.len() >= length))
}
