//! Tests pods that BPF programs capture, with the real agent and proxy, and those that get rules instead.

use std::net::SocketAddr;

use ambit_system_tests::{CLIENT_AND_SERVER, Mesh, Options, assert_only_tls, options, wait_until};

const VIRTUAL_INTERFACE: &str = "---
apiVersion: v1
kind: Pod
metadata:
  name: host
  namespace: shop
  annotations: {istio.io/reroute-virtual-interfaces: docker0}
spec:
  nodeName: node-1
  serviceAccountName: client
  containers:
  - {name: main, image: none, command: [$LAB_TOOL, sleep]}
";

fn by_bpf() -> Options {
    let env = [("REDIRECTION_BACKEND", "auto"), ("RECONCILE_SECONDS", "1")];
    Options {
        env: env
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        ..options()
    }
}

/// Returns the agent's report on a pod, as text.
fn report(mesh: &Mesh, pod: &str) -> String {
    let (namespace, name) = pod.split_once('/').unwrap_or(("default", pod));
    mesh.ambit(&["pod", name, "--namespace", namespace]).stdout
}

#[test]
fn programs_capture_pods_whose_traffic_is_encrypted() {
    let mesh = Mesh::up_with(CLIENT_AND_SERVER, by_bpf());
    for pod in ["shop/client", "shop/server"] {
        let report = report(&mesh, pod);
        assert!(report.contains("captured by BPF programs"), "{report}");
    }
    let wire = mesh.capture_between_nodes(&["plain-marker"]);
    let url = format!("http://{}:8080/", mesh.ip("shop/server"));
    for _ in 0..3 {
        assert!(mesh.get("shop/client", &url).succeeded());
    }
    // Other tests' connections are opened so.
    let echo = SocketAddr::new(mesh.ip("shop/server"), 9000);
    let mut connection = mesh.dial("shop/client", echo).unwrap();
    connection.exchange_line("plain-marker").unwrap();
    let ends = [mesh.ip("shop/client"), mesh.ip("shop/server")];
    assert_only_tls(&wire.finish(), &ends);
    // The proxy resolves names.
    mesh.wait_for_get("shop/client", "http://server.shop/", true);
    // From outside, by plaintext through the proxy.
    assert!(mesh.get("legacy/client", &url).succeeded());
}

/// The programs are pinned: with neither agent nor proxy nothing passes, and with new ones everything does.
#[test]
fn pods_stay_captured_while_agent_and_proxy_restart() {
    let mesh = Mesh::up_with(CLIENT_AND_SERVER, by_bpf());
    let url = format!("http://{}:8080/", mesh.ip("shop/server"));
    let wire = mesh.capture_between_nodes(&["plain-marker"]);
    for daemon in ["agent", "proxy"] {
        for node in ["node-1", "node-2"] {
            mesh.kill(daemon, Some(node));
        }
        wait_until("requests succeed again", || {
            mesh.get("shop/client", &url).succeeded()
        });
    }
    let ends = [mesh.ip("shop/client"), mesh.ip("shop/server")];
    assert_only_tls(&wire.finish(), &ends);
}

#[test]
fn pods_with_virtual_interfaces_get_rules_and_the_reason_is_reported() {
    let mesh = Mesh::up_with(&format!("{CLIENT_AND_SERVER}{VIRTUAL_INTERFACE}"), by_bpf());
    let report = report(&mesh, "shop/host");
    let reason = "captured by rules instead of BPF programs: ";
    assert!(
        report.contains(reason) && report.contains("capture of virtual interfaces"),
        "{report}"
    );
    let status = mesh.ambit(&["status"]).stdout;
    for line in [
        "node-1: pods captured by BPF programs: 1",
        "node-1: pods captured by rules instead of BPF programs: 1: ",
        "node-2: pods captured by BPF programs: 1",
    ] {
        assert!(status.contains(line), "{line:?} is not in {status}");
    }
    assert!(mesh.get("shop/host", "http://server.shop/").succeeded());
}
