//! Tests connections from before the capture: a mesh pod that started without having waited for its capture keeps no
//! such plaintext connection. A pod that was labelled while it ran keeps all of them, even when its agent restarts.

use std::process::Command;

use ambit_cluster_tests::{
    Mesh, Node, NodeBoot, TestNamespace, address, assert_throughout, wait_until,
};
use ambit_sys::{
    netns::Netns,
    tcp_sockets::{TcpStateFilter, unproxied_sockets},
};
use k8s_openapi::api::core::v1::Pod;
use std::time::Duration;

const AGENT_COMMAND: &str = "/ambit-agent";
/// Mark (`SO_MARK`) of the node proxy's sockets.
const PROXY_SOCKET_MARK: u32 = 0x539;

/// Creates a pod on the first node that connects to the server as soon as it runs, and keeps the connection; returns
/// its name.
fn deploy_connected_pod(space: &TestNamespace<'_>, server: &Pod) -> String {
    let target = format!("{}:9000", address(server));
    space.deploy("holder", 1, Some("n1"), &["hold", &target]);
    format!("ambit-lab-tool hold {target}")
}

/// Counts the connections of the pod `holder` that bypass the node proxy; `None` while the pod is not running.
fn count_plaintext_connections(node: Node<'_>, holder: &str) -> Option<usize> {
    let held = node.processes("").into_iter().find_map(|pid| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        let netns = words
            .contains(holder.split_once(' ')?.1)
            .then(|| Netns::open(format!("/proc/{pid}/ns/net")))?;
        netns.ok()
    })?;
    Some(
        unproxied_sockets(&held, PROXY_SOCKET_MARK, TcpStateFilter::Established)
            .ok()?
            .len(),
    )
}

fn signal_agents(node: Node<'_>, signal: &str) {
    for pid in node.processes(AGENT_COMMAND) {
        // One that has just ended does not count.
        drop(
            Command::new("kill")
                .args([signal, &pid.to_string()])
                .status(),
        );
    }
}

#[test]
fn what_a_pod_opened_after_a_boot_that_lost_the_plugin_is_closed() {
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("booted");
    let server = space.deploy_captured_server();
    let holder = deploy_connected_pod(&space, &server);
    space.wait_until_ready("holder", 1);
    space.wait_until_captured("holder", true);
    let node = mesh.cluster().node(1);
    node.kill().unwrap();
    node.start(NodeBoot::OnlyCniConfiguration).unwrap();
    wait_until(
        "the pod talks in plaintext, which no agent prevents",
        || {
            signal_agents(node, "-STOP");
            count_plaintext_connections(node, &holder).is_some_and(|connections| connections > 0)
        },
    );
    wait_until("none of it is left", || {
        signal_agents(node, "-CONT");
        count_plaintext_connections(node, &holder) == Some(0)
    });
    space.wait_until_captured("holder", true);
    mesh.wait_until_installed();
}

#[test]
fn what_a_pod_that_opted_in_opened_before_the_agent_knew_is_closed() {
    let mesh = Mesh::exclusive();
    let servers = mesh.test_namespace("joined");
    let server = servers.deploy_captured_server();
    let space = mesh.test_namespace("opted-in");
    // The node's agent has recorded the namespace as one outside the mesh.
    space.deploy_client("first", Some("n1"));
    let node = mesh.cluster().node(1);
    signal_agents(node, "-STOP");
    let target = format!("{}:9000", address(&server));
    space.create_ownerless_tool_pod(
        "holder",
        Some("n1"),
        serde_json::json!({"istio.io/dataplane-mode": "ambient"}),
        &["hold", &target],
    );
    let holder = format!("ambit-lab-tool hold {target}");
    wait_until(
        "the pod talks in plaintext, which no agent prevents",
        || count_plaintext_connections(node, &holder).is_some_and(|connections| connections > 0),
    );
    signal_agents(node, "-CONT");
    wait_until("none of it is left", || {
        count_plaintext_connections(node, &holder) == Some(0)
    });
    space.wait_until_captured("holder", true);
}

#[test]
fn connections_from_before_the_label_stay() {
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("labelled");
    let server = space.deploy_server("server", Some("n2"));
    let holder = deploy_connected_pod(&space, &server);
    let node = mesh.cluster().node(1);
    wait_until("the pod talks", || {
        count_plaintext_connections(node, &holder) == Some(1)
    });
    // No agent sees the label being set.
    node.kill_processes(AGENT_COMMAND).unwrap();
    space.label(Some("ambient"));
    space.wait_until_captured("holder", true);
    node.kill_processes(AGENT_COMMAND).unwrap();
    assert_throughout("the connection stays", Duration::from_secs(8), || {
        count_plaintext_connections(node, &holder) == Some(1)
    });
    mesh.wait_until_installed();
}
