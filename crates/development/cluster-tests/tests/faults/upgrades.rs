//! Tests of components that are killed, replaced, removed.

use std::{process::Command, time::Duration};

use ambit_cluster_tests::{
    Component, Load, Mesh, assert_only_tls, assert_throughout, assert_uninstalls, built_binary,
    wait_until,
};

use crate::{PROXY, WORKER};

#[test]
fn a_node_proxy_that_is_killed_again_and_again_refuses_no_connection() {
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("killed");
    let server = space.deploy_captured_server();
    let load = Load::start_captured(&space);
    let client = space.pods(load.pod()).remove(0);
    let wire = mesh.capture_traffic(&[]);
    for _ in 0..3 {
        for node in mesh.cluster().nodes() {
            let killed = node.kill_processes(WORKER).unwrap();
            assert!(killed > 0, "no proxy on {}", node.name());
            space.wait_for_get("load", "http://server/", true);
        }
    }
    let outcome = load.finish();
    assert_only_tls(&wire.finish(), &[&server, &client]);
    eprintln!("longest silence: {:?}", outcome.longest_gap);
    outcome.assert_all_connections_opened();
}

/// Kills the first process of the container, and with it all others: the standby node proxy takes over at once, long
/// before the kubelet restarts the container.
#[test]
fn a_node_proxy_whose_container_is_killed_refuses_no_connection() {
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("container");
    let server = space.deploy_captured_server();
    let load = Load::start_captured(&space);
    let client = space.pods(load.pod()).remove(0);
    let wire = mesh.capture_traffic(&[]);
    for _ in 0..2 {
        for node in mesh.cluster().nodes() {
            wait_until(&format!("both containers run on {}", node.name()), || {
                node.processes(PROXY).len() == 3
            });
            assert_eq!(node.kill_parents(WORKER).unwrap(), 1);
            space.wait_for_get("load", "http://server/", true);
        }
    }
    let outcome = load.finish();
    assert_only_tls(&wire.finish(), &[&server, &client]);
    eprintln!("longest silence: {:?}", outcome.longest_gap);
    outcome.assert_all_connections_opened();
}

#[test]
fn overlapping_rollouts_of_the_node_proxy_break_no_connection() {
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("rollout");
    space.deploy_captured_server();
    let load = Load::start_captured(&space);
    for _ in 0..2 {
        mesh.restart(Component::NodeProxy);
        space.wait_for_get("load", "http://server/", true);
    }
    let shown = mesh.ambit(&["rollout"]);
    assert!(
        shown.contains("new node proxies serve every node"),
        "{shown}"
    );
    assert!(shown.contains("\ndraining:\n"), "{shown}");
    // Twice as long as Kubernetes gives a pod by default: nothing cuts open connections.
    let while_open = Duration::from_secs(hold_seconds());
    assert_throughout("connections are held", while_open, || true);
    load.finish().assert_no_failures();
}

/// Returns how long connections are held during rollouts; `AMBIT_HOLD_SECONDS` overrides it.
fn hold_seconds() -> u64 {
    let seconds = std::env::var("AMBIT_HOLD_SECONDS").ok();
    seconds.and_then(|text| text.parse().ok()).unwrap_or(65)
}

/// Returns the output of `ambit status`, whether or not everything is in order.
fn status(mesh: &Mesh, args: &[&str]) -> String {
    let status = Command::new(built_binary("ambit"))
        .arg("status")
        .args(args)
        .env("KUBECONFIG", mesh.cluster().kubeconfig())
        .output()
        .unwrap();
    String::from_utf8(status.stdout).unwrap()
}

/// Returns the lines of `ambit status` about how pods are captured. They are also shown while components are replaced.
fn capture_lines(mesh: &Mesh) -> Vec<String> {
    let text = status(mesh, &[]);
    let lines = text
        .lines()
        .filter(|line| line.contains("pods captured by"));
    lines.map(str::to_owned).collect()
}

/// Whether all nodes report that their pods are captured, none of them by BPF programs.
fn rules_capture_all(mesh: &Mesh) -> bool {
    let Ok(status) = serde_json::from_str::<serde_json::Value>(&status(mesh, &["-o", "json"]))
    else {
        return false;
    };
    let nodes = status["nodes"].as_array().cloned().unwrap_or_default();
    let by_rules = |node: &serde_json::Value| {
        node["captured"].is_number()
            && node["captured"] == node["wanted"]
            && node["capturedByBpf"] == 0
    };
    nodes.len() == 2 && nodes.iter().all(by_rules)
}

#[test]
fn pods_change_to_bpf_programs_and_back_without_a_failure() {
    const RULES: &[&str] = &["cni.redirectionBackend=nftables"];
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("backends");
    mesh.install(RULES);
    let server = space.deploy_captured_server();
    let load = Load::start_captured(&space);
    let client = space.pods(load.pod()).remove(0);
    wait_until("rules capture all pods", || rules_capture_all(&mesh));
    let wire = mesh.capture_traffic(&[]);

    mesh.install(&[]);
    wait_until("BPF programs capture the pods of both nodes", || {
        let lines = capture_lines(&mesh);
        lines.len() == 2 && lines.iter().all(|line| line.contains("by BPF programs: "))
    });
    // A pod that starts now is captured by programs from its first connection on.
    space.deploy("late", 1, Some("n1"), &["sleep"]);
    let late = space.wait_until_ready("late", 1).remove(0);
    space.get("late", "http://server/").unwrap();
    assert!(
        capture_lines(&mesh).contains(&"n1: pods captured by BPF programs: 2".to_owned()),
        "{:?}",
        capture_lines(&mesh)
    );

    mesh.install(RULES);
    wait_until("rules capture all pods", || rules_capture_all(&mesh));
    space.get("late", "http://server/").unwrap();
    mesh.install(&[]);

    let outcome = load.finish();
    assert_only_tls(&wire.finish(), &[&server, &client, &late]);
    eprintln!("longest silence: {:?}", outcome.longest_gap);
    outcome.assert_no_failures();
}

#[test]
fn uninstalling_breaks_nothing_and_leaves_nothing() {
    let mesh = Mesh::exclusive();
    assert_uninstalls(&mesh, || {
        mesh.ambit(&["uninstall", "--unlabel", "--timeout=90s"]);
    });
    mesh.install(&[]);
}

#[test]
fn uninstalling_with_helm_breaks_nothing_and_leaves_nothing() {
    let mesh = Mesh::exclusive();
    mesh.install_with_helm();
    assert_uninstalls(&mesh, || mesh.uninstall_with_helm());
    assert_eq!(mesh.chart_objects(), "");
    mesh.install(&[]);
}
