//! Test of all faults at once, and of the state afterwards.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::MetadataExt,
    time::{Duration, Instant},
};

use ambit_cluster_tests::{Mesh, Node, assert_nothing_in_plaintext, wait_until};
use kube::ResourceExt;

use crate::{PROXY, WORKER};

/// Duration for which pods and processes are killed.
const CHAOS_DURATION: Duration = Duration::from_secs(25);

#[test]
fn no_plaintext_and_no_leak_while_pods_and_mesh_are_killed() {
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("chaos");
    let server = space.deploy_captured_server();
    let wire = mesh.capture_traffic(&[&space.traffic_marker()]);
    space.deploy_starting_clients(6, None);
    let end = Instant::now() + CHAOS_DURATION;
    let victims = [WORKER, "/ambit-agent", PROXY];
    for round in 0.. {
        if Instant::now() > end {
            break;
        }
        for pod in space.pods("starter").iter().skip(round % 2).step_by(2) {
            space.delete_pod(&pod.name_any());
        }
        for (node, victim) in mesh
            .cluster()
            .nodes()
            .zip(victims.iter().cycle().skip(round))
        {
            node.kill_processes(victim).unwrap();
        }
        wait_until("some pod is ready", || {
            space
                .pods("starter")
                .iter()
                .any(ambit_cluster_tests::is_ready)
        });
    }
    for pod in space.wait_until_ready("starter", 6) {
        let event = space.wait_for_event(&pod.name_any(), "first-connect");
        assert!(event["first_answer_ms"].is_number(), "{event}");
    }
    mesh.wait_until_installed();
    space.wait_until_captured("starter", true);
    assert_nothing_in_plaintext(&wire.finish(), &[&server], &[9000]);
    for node in mesh.cluster().nodes() {
        wait_until("no namespace of a pod that has gone is held", || {
            open_network_namespaces(node).is_subset(&used_network_namespaces(node))
        });
    }
}

/// Returns the network namespaces, by inode, that the agent and node proxy of a node hold open.
fn open_network_namespaces(node: Node<'_>) -> BTreeSet<u64> {
    let filesystem = fs::metadata("/proc/self/ns/net").unwrap().dev();
    // The command lines of the proxy's supervisor and its worker both begin so.
    let holders = ["/ambit-agent", PROXY].map(|program| node.processes(program));
    holders
        .iter()
        .flatten()
        .flat_map(|pid| {
            fs::read_dir(format!("/proc/{pid}/fd"))
                .into_iter()
                .flatten()
        })
        .filter_map(|entry| fs::metadata(entry.ok()?.path()).ok())
        .filter(|file| file.dev() == filesystem)
        .map(|file| file.ino())
        .collect()
}

/// Returns the network namespaces, by inode, of the node's processes, including the node's own.
fn used_network_namespaces(node: Node<'_>) -> BTreeSet<u64> {
    let mut pids = node.processes("");
    pids.extend(node.pid());
    pids.iter()
        .filter_map(|pid| fs::metadata(format!("/proc/{pid}/ns/net")).ok())
        .map(|file| file.ino())
        .collect()
}
