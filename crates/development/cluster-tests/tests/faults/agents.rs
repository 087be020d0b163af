//! Tests of node agents that die or are replaced while pods start.

use std::{
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use ambit_cluster_tests::{
    Mesh, Node, Part, Space, Wire, assert_nothing_in_plaintext, throughout, until,
};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

/// Path on a node of the agent's socket for the CNI plugin.
const SOCKET: &str = "run/istio-cni/pluginevent.sock";
/// Duration for which an agent is repeatedly killed.
const KILLED: Duration = Duration::from_secs(20);

/// Returns whether the node's agent listens on its socket for the CNI plugin.
pub(crate) fn agent_listens(node: Node<'_>) -> bool {
    let root = node.root();
    root.is_ok_and(|root| UnixStream::connect(root.join(SOCKET)).is_ok())
}

/// Deploys a server on the second node, and captures its traffic, which must never be in plaintext.
fn with_server<'a>(mesh: &'a Mesh, name: &str) -> (Space<'a>, Pod, Wire) {
    let space = mesh.space(name);
    let server = space.serve_captured();
    let wire = mesh.watch(&[&space.marker()]);
    (space, server, wire)
}

/// Waits until this number of pods `starter` run and are captured, and checks that each got a response from the server.
fn assert_captured(space: &Space<'_>, count: usize) {
    for pod in space.ready("starter", count) {
        let event = space.until_event(&pod.name_any(), "first-connect");
        assert!(event["first_answer_ms"].is_number(), "{event}");
    }
    space.until_captured("starter", true);
}

#[test]
fn waiting_pods_start_when_a_crashing_agent_returns() {
    let mesh = Mesh::alone();
    let (space, server, wire) = with_server(&mesh, "crashing");
    let node = mesh.cluster().node(1);
    node.kill_processes("/ambit-agent").unwrap();
    space.deploy_starters(3, Some("n1"));
    throughout("the agent is killed", KILLED, || {
        node.kill_processes("/ambit-agent").is_ok()
    });
    until("the agent is back", || agent_listens(node));
    let back = Instant::now();
    space.ready("starter", 3);
    eprintln!("pods ready {:.1?} after the agent's return", back.elapsed());
    assert_captured(&space, 3);
    assert_nothing_in_plaintext(&wire.finish(), &[&server], &[9000]);
    mesh.until_installed();
}

#[test]
fn pods_start_while_their_agent_is_replaced() {
    let mesh = Mesh::alone();
    let (space, server, wire) = with_server(&mesh, "replaced");
    space.deploy_starters(6, None);
    let begin = Instant::now();
    mesh.restart(Part::Agent);
    space.ready("starter", 6);
    eprintln!("pods and agents ready after {:.1?}", begin.elapsed());
    assert_captured(&space, 6);
    assert_nothing_in_plaintext(&wire.finish(), &[&server], &[9000]);
}
