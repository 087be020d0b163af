//! What operators see of waypoints, from the command line.

use std::process::Command;

use ambit_cluster_tests::{Mesh, until};

use super::Covered;

#[test]
fn records_state_and_reports_of_waypoints_are_shown_to_operators() {
    let mesh = Mesh::shared();
    let space = mesh.space("shown");
    let _covered = Covered::new(&space);
    space.apply(
        "apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-admin}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: waypoint}]
  action: DENY
  rules: [{to: [{operation: {paths: [/admin*]}}]}]
",
    );
    let waypoint = format!("{}/waypoint", space.name());
    let shows = |section: &str, texts: &[&str]| {
        until(&format!("{section} with {texts:?}"), || {
            let text = mesh.ambit(&["waypoint", section, "-n", space.name()]);
            texts.iter().all(|one| text.contains(one))
        });
    };
    let policy = format!("{}/no-admin", space.name());
    let service = format!("{0}/server.{0}.svc.cluster.local", space.name());
    shows("policies", &[&waypoint, &policy, "DENY"]);
    shows("routes", &[&waypoint, &service]);
    shows("endpoints", &[&waypoint, &service, "Healthy"]);

    // Each of its pods, in order, and not among the problems.
    until("the status has the waypoint's pods", || {
        let text = mesh.ambit(&["status"]);
        let mut rows = text.lines().filter(|line| line.starts_with(&waypoint));
        let in_order = rows
            .clone()
            .all(|row| row.contains(" ready ") && row.contains("SYNCED"));
        rows.next().is_some() && in_order && !text.contains(&format!("! {waypoint}"))
    });
    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("report.tar.gz");
    let archive = archive.to_str().unwrap();
    mesh.ambit(&["bug-report", "--output", archive, "--log-lines", "10"]);
    let listed = Command::new("tar")
        .args(["-tzf", archive])
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let has = |file: &str| {
        let mut lines = listed.lines();
        lines.any(|line| line.contains("pods/waypoint-") && line.ends_with(file))
    };
    assert!(
        has("/config_dump") && has("/metrics") && has(".log"),
        "{listed}"
    );
}
