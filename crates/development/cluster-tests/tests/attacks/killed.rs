//! Tests that whichever process of the mesh is killed, nothing travels in plaintext. As long as process 1 of a
//! container is alive, and one of the two containers of a node proxy, no new connection is refused and the kubelet has
//! nothing to restart; when all are dead, the first node proxy that the kubelet starts serves the node's pods without
//! waiting for the agent.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use ambit_cluster_tests::{
    Component, Load, Mesh, Node, TestNamespace, assert_nothing_in_plaintext, assert_throughout,
    wait_until,
};

/// Command line of the node proxy's worker, which carries the connections.
const PROXY_WORKER: &str = "/ambit-node-proxy worker";
/// Command line of the node proxy's supervisors and workers.
const PROXY: &str = "/ambit-node-proxy";
/// Command line of the agent's worker.
const AGENT_WORKER: &str = "/ambit-agent --worker";
/// Command line of the agent's worker and supervisor.
const AGENT: &str = "/ambit-agent";

/// Returns the duration of the kills, which `AMBIT_KILL_SECONDS` overrides.
fn kill_duration() -> Duration {
    let seconds = std::env::var("AMBIT_KILL_SECONDS").ok();
    Duration::from_secs(seconds.and_then(|text| text.parse().ok()).unwrap_or(15))
}

/// Returns the number of restarts of the mesh's containers.
fn restarts(mesh: &Mesh) -> i32 {
    let pods = [Component::Agent, Component::NodeProxy].map(|part| mesh.pods_of(part));
    pods.iter()
        .flatten()
        .map(ambit_cluster_tests::restarts)
        .sum()
}

fn has_standby_proxy(node: Node<'_>) -> bool {
    node.processes(PROXY).len() >= 3
}

#[test]
fn everything_but_process_1_is_killed_and_no_opening_is_refused() {
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("workers");
    let server = space.deploy_captured_server();
    let load = Load::start_captured(&space);
    let wire = mesh.capture_traffic(&[&space.traffic_marker()]);
    for node in mesh.cluster().nodes() {
        wait_until("a standby is connected", || has_standby_proxy(node));
    }
    let before = restarts(&mesh);
    let mut kills = 0_u64;
    let mut next = Instant::now();
    assert_throughout("whatever is killed is there", kill_duration(), || {
        if Instant::now() >= next {
            kills += 1;
            // 0.5 to 2 s, never twice at the same interval.
            next = Instant::now() + Duration::from_millis(500 + kills * 373 % 1500);
            for node in mesh.cluster().nodes() {
                for worker in [PROXY_WORKER, AGENT_WORKER] {
                    node.kill_processes(worker).unwrap();
                }
            }
        }
        true
    });
    let last = Instant::now();
    mesh.wait_until_installed();
    eprintln!(
        "{kills} rounds; ready {:.1?} after the last",
        last.elapsed()
    );
    space.wait_for_get("load", "http://server/", true);
    let outcome = load.finish();
    eprintln!("longest silence: {:?}", outcome.longest_gap);
    assert_nothing_in_plaintext(&wire.finish(), &[&server], &[9000]);
    outcome.assert_all_connections_opened();
    assert_eq!(
        restarts(&mesh),
        before,
        "kubelet had to start something again"
    );
}

/// Kills the agent's processes, and process 1 of the container of the node proxy that serves.
fn kill_serving_processes(space: &TestNamespace<'_>, node: Node<'_>) -> u32 {
    node.kill_processes(AGENT).unwrap();
    assert_eq!(node.kill_parents(PROXY_WORKER).unwrap(), 1);
    space.wait_for_get("load", "http://server/", true);
    1
}

#[test]
fn process_1_of_one_container_is_killed_while_the_other_stands_by() {
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("one");
    let server = space.deploy_captured_server();
    let load = Load::start_captured(&space);
    let wire = mesh.capture_traffic(&[&space.traffic_marker()]);
    let mut kills = 0;
    for node in mesh.cluster().nodes() {
        wait_until("a standby is connected", || has_standby_proxy(node));
        kills += kill_serving_processes(&space, node);
    }
    // Again as soon as kubelet has made it a standby, which it puts off for longer each time.
    let mut at_last_look = BTreeSet::new();
    assert_throughout("process 1 is killed again", kill_duration(), || {
        let mut now = BTreeSet::new();
        for node in mesh
            .cluster()
            .nodes()
            .filter(|node| has_standby_proxy(*node))
        {
            // One that has only just begun holds nothing yet.
            if at_last_look.contains(&node.name()) {
                kills += kill_serving_processes(&space, node);
            } else {
                now.insert(node.name());
            }
        }
        at_last_look = now;
        true
    });
    let outcome = load.finish();
    eprintln!("{kills} killed, longest silence: {:?}", outcome.longest_gap);
    assert_nothing_in_plaintext(&wire.finish(), &[&server], &[9000]);
    outcome.assert_all_connections_opened();
    mesh.wait_until_installed();
}

#[test]
fn first_node_proxy_serves_pods_without_the_agent() {
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("all");
    let server = space.deploy_captured_server();
    let load = Load::start_captured(&space);
    let wire = mesh.capture_traffic(&[&space.traffic_marker()]);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // No agent starts, and no process holds listeners for a node proxy.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for node in mesh.cluster().nodes() {
                    node.kill_processes(AGENT).unwrap();
                }
            }
        });
        for node in mesh.cluster().nodes() {
            wait_until("the agent is dead", || {
                node.processes(AGENT_WORKER).is_empty()
            });
            node.kill_processes(PROXY).unwrap();
        }
        let killed = Instant::now();
        for node in mesh.cluster().nodes() {
            wait_until("kubelet has started a node proxy", || {
                !node.processes(PROXY_WORKER).is_empty()
            });
        }
        let back = Instant::now();
        space.wait_for_get("load", "http://server/", true);
        eprintln!(
            "a node proxy on each node {:.1?} after the end of all, answers {:.1?} later",
            back.duration_since(killed),
            back.elapsed()
        );
        over.store(true, Ordering::Relaxed);
    });
    load.finish();
    assert_nothing_in_plaintext(&wire.finish(), &[&server], &[9000]);
    mesh.wait_until_installed();
}
