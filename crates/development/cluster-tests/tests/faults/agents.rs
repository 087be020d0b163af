//! Tests of node agents that die or are replaced while pods start.

use std::{
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use ambit_cluster_tests::{
    Component, Mesh, Node, TestNamespace, TrafficCapture, assert_nothing_in_plaintext,
    assert_throughout, wait_until,
};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

/// Path on a node of the agent's socket for the CNI plugin.
const AGENT_SOCKET: &str = "run/istio-cni/pluginevent.sock";
/// Duration for which an agent is repeatedly killed.
const KILL_DURATION: Duration = Duration::from_secs(20);

/// Returns whether the node's agent listens on its socket for the CNI plugin.
pub(crate) fn agent_listens(node: Node<'_>) -> bool {
    let root = node.root();
    root.is_ok_and(|root| UnixStream::connect(root.join(AGENT_SOCKET)).is_ok())
}

/// Deploys a server on the second node, and captures its traffic, which must never be in plaintext.
fn deploy_watched_server<'a>(
    mesh: &'a Mesh,
    name: &str,
) -> (TestNamespace<'a>, Pod, TrafficCapture) {
    let space = mesh.test_namespace(name);
    let server = space.deploy_captured_server();
    let wire = mesh.capture_traffic(&[&space.traffic_marker()]);
    (space, server, wire)
}

/// Waits until this number of pods `starter` run and are captured, and checks that each got a response from the server.
fn assert_starters_captured(space: &TestNamespace<'_>, count: usize) {
    for pod in space.wait_until_ready("starter", count) {
        let event = space.wait_for_event(&pod.name_any(), "first-connect");
        assert!(event["first_answer_ms"].is_number(), "{event}");
    }
    space.wait_until_captured("starter", true);
}

#[test]
fn waiting_pods_start_when_a_crashing_agent_returns() {
    let mesh = Mesh::exclusive();
    let (space, server, wire) = deploy_watched_server(&mesh, "crashing");
    let node = mesh.cluster().node(1);
    node.kill_processes("/ambit-agent").unwrap();
    space.deploy_starting_clients(3, Some("n1"));
    assert_throughout("the agent is killed", KILL_DURATION, || {
        node.kill_processes("/ambit-agent").is_ok()
    });
    wait_until("the agent is back", || agent_listens(node));
    let back = Instant::now();
    space.wait_until_ready("starter", 3);
    eprintln!("pods ready {:.1?} after the agent's return", back.elapsed());
    assert_starters_captured(&space, 3);
    assert_nothing_in_plaintext(&wire.finish(), &[&server], &[9000]);
    mesh.wait_until_installed();
}

#[test]
fn pods_start_while_their_agent_is_replaced() {
    let mesh = Mesh::exclusive();
    let (space, server, wire) = deploy_watched_server(&mesh, "replaced");
    space.deploy_starting_clients(6, None);
    let begin = Instant::now();
    mesh.restart(Component::Agent);
    space.wait_until_ready("starter", 6);
    eprintln!("pods and agents ready after {:.1?}", begin.elapsed());
    assert_starters_captured(&space, 6);
    assert_nothing_in_plaintext(&wire.finish(), &[&server], &[9000]);
}
