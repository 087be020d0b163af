//! Tests of mesh containers that are killed faster than the kubelet restarts them.

use std::time::{Duration, Instant};

use ambit_cluster_tests::{Component, Load, Mesh, Node, assert_nothing_in_plaintext, wait_until};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use crate::{PROXY, WORKER, agents::agent_listens};

/// Longest accepted time without a response. Each test here reaches kubelet's back-off before the fourth restart (40
/// s). The limit is half of it, which leaves two busy cores time to start a container.
const MAX_RESPONSE_GAP: Duration = Duration::from_secs(20);

/// Returns how often the test kills all containers of the mesh on both nodes; `AMBIT_KILLS` overrides it. The kubelet
/// delays the second restart by 10 s, then by 20, 40 and 80 s.
fn kill_count() -> u32 {
    let kills = std::env::var("AMBIT_KILLS").ok();
    kills.and_then(|text| text.parse().ok()).unwrap_or(5)
}

/// Kills every container of agent and node proxy on the node at once, supervisors and workers.
fn kill_mesh_containers(node: Node<'_>) {
    for program in ["/ambit-agent", PROXY] {
        node.kill_processes(program).unwrap();
    }
}

fn has_mesh_containers(node: Node<'_>) -> bool {
    // The supervisors of both containers, and a worker.
    node.processes(PROXY).len() >= 3 && agent_listens(node)
}

#[test]
fn killed_containers_do_not_wait_for_kubelets_back_off() {
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("backoff");
    let server = space.deploy_captured_server();
    let load = Load::start_slow(&space, "load", "n1", "server");
    space.wait_until_captured("load", true);
    space.wait_for_get("load", "http://server/", true);
    let wire = mesh.capture_traffic(&[&space.traffic_marker()]);
    for kill in 1..=kill_count() {
        for node in mesh.cluster().nodes() {
            wait_until("agent and node proxy run", || has_mesh_containers(node));
        }
        mesh.cluster().nodes().for_each(kill_mesh_containers);
        let killed = Instant::now();
        wait_until("requests are answered again", || {
            space.get("load", "http://server/").is_ok()
        });
        eprintln!("kill {kill}: served after {:.1?}", killed.elapsed());
    }
    mesh.wait_until_installed();
    space.wait_for_get("load", "http://server/", true);
    let outcome = load.finish();
    assert_nothing_in_plaintext(&wire.finish(), &[&server], &[9000]);
    eprintln!("{outcome}");
    let longest = outcome.longest_gap.get("new").copied();
    assert!(
        longest.is_some_and(|gap| gap < MAX_RESPONSE_GAP),
        "{outcome}"
    );
}

#[test]
fn pods_start_in_seconds_although_their_agent_is_killed_each_time() {
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("held-back");
    let server = space.deploy_captured_server();
    let wire = mesh.capture_traffic(&[&space.traffic_marker()]);
    let node = mesh.cluster().node(1);
    for (kill, name) in ["first", "second", "third", "fourth"]
        .into_iter()
        .enumerate()
    {
        wait_until("the agent listens", || agent_listens(node));
        node.kill_processes("/ambit-agent").unwrap();
        let killed = Instant::now();
        space.deploy_client(name, Some("n1"));
        let elapsed = killed.elapsed();
        eprintln!("kill {}: a pod started after {elapsed:.1?}", kill + 1);
        if elapsed >= MAX_RESPONSE_GAP {
            let events = mesh.kubectl(&["describe", "pod", name, "--namespace", space.name()]);
            panic!("pod {name} started after {elapsed:?}: {events}");
        }
        space.wait_until_captured(name, true);
    }
    assert_nothing_in_plaintext(&wire.finish(), &[&server], &[9000]);
    mesh.wait_until_installed();
}

#[test]
fn a_pod_whose_other_container_serves_is_not_replaced() {
    let mesh = Mesh::exclusive();
    let node = mesh.cluster().node(1);
    wait_until("agent and node proxy run", || has_mesh_containers(node));
    let uids = || -> Vec<_> {
        let pods = mesh.pods_of(Component::NodeProxy).into_iter();
        pods.map(|pod| pod.metadata.uid).collect()
    };
    let before = uids();
    let mut was_held_back = false;
    // Of two containers, one is killed for the second time at the third kill.
    for _ in 0..4 {
        node.kill_parents(WORKER).unwrap();
        wait_until("both containers run", || {
            let pods = mesh.pods_of(Component::NodeProxy);
            was_held_back |= pods
                .iter()
                .flat_map(container_statuses)
                .any(is_in_restart_backoff);
            has_mesh_containers(node)
        });
    }
    assert!(was_held_back, "kubelet delayed no restart");
    assert_eq!(uids(), before);
    mesh.wait_until_installed();
}

fn container_statuses(pod: &Pod) -> &[ContainerStatus] {
    let status = pod.status.as_ref();
    status
        .and_then(|status| status.container_statuses.as_deref())
        .unwrap_or_default()
}

fn is_in_restart_backoff(status: &ContainerStatus) -> bool {
    let waiting = status
        .state
        .as_ref()
        .and_then(|state| state.waiting.as_ref());
    waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some("CrashLoopBackOff"))
}
