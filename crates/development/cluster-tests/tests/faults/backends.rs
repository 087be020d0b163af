//! Test of a mesh in use that changes from rules to BPF programs and back.

use std::process::Command;

use ambit_cluster_tests::{Load, Mesh, assert_only_tls, built_binary, wait_until};

/// Returns the lines of `ambit status` about how pods are captured. They are also shown while components are replaced.
fn capture_lines(mesh: &Mesh) -> Vec<String> {
    let status = Command::new(built_binary("ambit"))
        .arg("status")
        .env("KUBECONFIG", mesh.cluster().kubeconfig())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&status.stdout);
    let lines = text
        .lines()
        .filter(|line| line.contains("pods captured by"));
    lines.map(str::to_owned).collect()
}

#[test]
fn pods_change_to_bpf_programs_and_back_without_a_failure() {
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("backends");
    let server = space.deploy_captured_server();
    let load = Load::start_captured(&space);
    let client = space.pods(load.pod()).remove(0);
    let wire = mesh.capture_traffic(&[]);

    mesh.install(&["cni.redirectionBackend=bpf"]);
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

    mesh.install(&[]);
    wait_until("rules capture all pods", || capture_lines(&mesh).is_empty());
    space.get("late", "http://server/").unwrap();

    let outcome = load.finish();
    assert_only_tls(&wire.finish(), &[&server, &client, &late]);
    eprintln!("longest silence: {:?}", outcome.longest_gap);
    outcome.assert_no_failures();
}
