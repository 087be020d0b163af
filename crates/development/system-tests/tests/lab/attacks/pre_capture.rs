//! Tests that a plaintext connection to a captured pod survives the start of STRICT mTLS only if it is kubelet's or
//! stays within the pod, even if it was opened while plaintext was allowed, before the pod's capture.

use std::net::{Ipv4Addr, SocketAddr};

use ambit_system_tests::{
    CLIENT_AND_SERVER, EchoConnection, LabNetns, LogSource, Mesh, wait_until,
};

const STRICT: &str = "apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: strict, namespace: shop}
spec: {mtls: {mode: STRICT}}
";

/// Starts a server outside of the mesh; returns the mesh and the server's address.
fn start_unenrolled_server() -> (Mesh, SocketAddr) {
    let mesh = Mesh::up(&CLIENT_AND_SERVER.replace("istio.io/dataplane-mode: ambient", "team: a"));
    let server = SocketAddr::new(mesh.ip("shop/server"), 9000);
    (mesh, server)
}

fn dial_from_node(mesh: &Mesh, server: SocketAddr) -> EchoConnection {
    mesh.dial_from(LabNetns::Node("node-2".into()), server)
        .unwrap()
}

/// Returns whether the server's node proxy has the STRICT policy.
fn has_strict_policy(mesh: &Mesh) -> bool {
    let dump = mesh.proxy_dump("node-2");
    let workloads = dump["workloads"].as_array().cloned().unwrap_or_default();
    let mut server = workloads
        .iter()
        .filter(|workload| workload["name"] == "server" && workload["namespace"] == "shop");
    server.any(|workload| workload.to_string().contains("strict"))
        && dump["policies"].to_string().contains("strict")
}

fn proxy_log(mesh: &Mesh) -> String {
    let log = LogSource::Daemon {
        name: "proxy".into(),
        node: Some("node-2".into()),
    };
    mesh.client().log_text(log).unwrap()
}

#[test]
fn pre_capture_plaintext_ends_when_strict_starts() {
    let (mesh, server) = start_unenrolled_server();
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, server.port()));
    let mut plaintext = mesh.dial("legacy/client", server).unwrap();
    let mut kept = [
        dial_from_node(&mesh, server),
        mesh.dial("shop/server", loopback).unwrap(),
        mesh.dial("shop/server", server).unwrap(),
    ];
    mesh.label("shop", "ambient");
    mesh.wait_until_captured("shop/server", true);
    // A connection of kubelet, by the exemption of probes.
    let mut probe = dial_from_node(&mesh, server);
    plaintext.exchange_line("open before the capture").unwrap();

    mesh.apply("strict", STRICT);
    plaintext.wait_until_closed();
    for conversation in kept.iter_mut().chain([&mut probe]) {
        conversation.exchange_line("goes on").unwrap();
    }
    wait_until("the log names the policy", || {
        let log = proxy_log(&mesh);
        let mut lines = log.lines();
        lines.any(|line| {
            line.contains("closed a plaintext connection")
                && line.contains("istio_converted_static_strict")
        })
    });
    let metrics = mesh.proxy_metrics("node-2");
    let counted = "ambit_earlier_connections_total{cause=\"Policy\",result=\"Closed\"} 1";
    assert!(metrics.contains(counted), "{metrics}");
}

#[test]
fn plaintext_from_before_capture_under_strict_follows_the_setting() {
    let (mesh, server) = start_unenrolled_server();
    mesh.apply("strict", STRICT);
    wait_until("the server's proxy knows", || has_strict_policy(&mesh));
    let mut plaintext = mesh.dial("legacy/client", server).unwrap();
    plaintext.exchange_line("open before the capture").unwrap();
    mesh.label("shop", "ambient");
    mesh.wait_until_captured("shop/server", true);
    plaintext
        .exchange_line("kept, as it is by default")
        .unwrap();
    // Another policy of the pod does not change that.
    mesh.apply(
        "deny",
        "apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: others, namespace: shop}
spec:
  action: DENY
  rules: [{to: [{operation: {ports: ['1']}}]}]
",
    );
    wait_until("the server's proxy knows", || {
        mesh.proxy_dump("node-2")["policies"]
            .to_string()
            .contains("others")
    });
    plaintext.exchange_line("still kept").unwrap();
    let new = mesh.dial("legacy/client", server);
    let refused = new
        .and_then(|mut new| new.exchange_line("refused"))
        .unwrap_err();
    assert!(refused.to_string().contains("reset"), "{refused}");
}
