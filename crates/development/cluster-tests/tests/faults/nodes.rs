//! Tests of nodes that fail and reboot.

use std::time::Instant;

use ambit_cluster_tests::{
    Mesh, NodeBoot, assert_nothing_in_plaintext, is_ready, restarts, wait_until,
};
use kube::ResourceExt;

use crate::agents::agent_listens;

#[test]
fn pods_of_a_node_that_boots_are_captured_before_they_talk() {
    test_reboot(NodeBoot::AsConfigured);
}

#[test]
fn primary_cni_rewritten_at_boot_lets_no_plaintext_out() {
    test_reboot(NodeBoot::CniRewritten);
}

fn test_reboot(boot: NodeBoot) {
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("reboot");
    let server = space.deploy_captured_server();
    space.deploy_starting_clients(3, Some("n1"));
    let pods = space.wait_until_ready("starter", 3);
    for pod in &pods {
        space.wait_for_event(&pod.name_any(), "first-connect");
    }

    let node = mesh.cluster().node(1);
    node.kill().unwrap();
    let wire = mesh.capture_traffic(&[&space.traffic_marker()]);
    let begin = Instant::now();
    node.start(boot).unwrap();
    wait_until("the node's agent is back", || agent_listens(node));
    let back = begin.elapsed();
    wait_until("the node's pods have started again and are ready", || {
        let pods = space.pods("starter");
        pods.len() == 3 && pods.iter().all(|pod| is_ready(pod) && restarts(pod) > 0)
    });
    let ready = begin.elapsed();
    eprintln!("{boot:?}: agent back {back:.1?} after the boot, pods {ready:.1?}");
    for pod in space.pods("starter") {
        let event = space.wait_for_event(&pod.name_any(), "first-connect");
        assert!(event["first_answer_ms"].is_number(), "{event}");
        assert_eq!(restarts(&pod), 1, "it started once");
    }
    space.wait_until_captured("starter", true);
    assert_nothing_in_plaintext(&wire.finish(), &[&server], &[9000]);
    mesh.wait_until_installed();
}
