//! What operators see of waypoints, from the command line.

use std::process::{Command, Stdio};

use ambit_cluster_tests::{Mesh, binary, until};

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

/// A kubeconfig of a user with the rights of a service account, which has none.
fn of_nobody(mesh: &Mesh, namespace: &str) -> tempfile::NamedTempFile {
    let view = [
        "config",
        "view",
        "--raw",
        "--minify",
        "--flatten",
        "-o",
        "json",
    ];
    let mut config: serde_json::Value = serde_json::from_str(&mesh.kubectl(&view)).unwrap();
    let token = mesh.kubectl(&["create", "token", "default", "-n", namespace]);
    config["users"][0]["user"] = serde_json::json!({"token": token.trim()});
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), config.to_string()).unwrap();
    file
}

#[test]
fn flows_are_shown_live_to_users_with_the_right() {
    let mesh = Mesh::shared();
    let space = mesh.space("flows");
    let covered = Covered::new(&space);
    let child = Command::new(binary("ambit"))
        .args(["flows", "-o", "json", "--for", "15s", "-n", space.name()])
        .env("KUBECONFIG", mesh.cluster().kubeconfig())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = std::thread::spawn(move || child.wait_with_output());
    let reading = || {
        let metrics = covered.waypoint.metrics("client");
        metrics.lines().any(|line| line == "ambit_flow_readers 1")
    };
    until("the waypoint has a reader", reading);
    until("the reader has ended", || {
        space
            .get("client", &format!("{}/seen", covered.urls[0]))
            .unwrap();
        !reading()
    });
    let output = output.join().unwrap().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let events: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for side in ["source", "waypoint", "destination"] {
        let is_seen = events.iter().any(|event| event["reporter"]["kind"] == side);
        assert!(is_seen, "{side} in {text}");
    }
    let request = events
        .iter()
        .find(|event| event["request"]["path"] == "/seen");
    let request = request.unwrap_or_else(|| panic!("no request in {text}"));
    assert_eq!(request["waypoint"], format!("{}/waypoint", space.name()));
    assert_eq!(request["source"]["owner"], "client");

    let client = format!("{}/client", space.name());
    let explained = mesh.ambit(&[
        "explain", "--from", &client, "--to", "server", "--path", "/seen",
    ]);
    assert!(explained.contains("REACHES the application"), "{explained}");

    let nobody = of_nobody(&mesh, space.name());
    let refused = Command::new(binary("ambit"))
        .args(["flows", "-o", "json", "--for", "5s", "--kubeconfig"])
        .arg(nobody.path())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && refused.stdout.is_empty(),
        "{error}"
    );
    assert!(error.contains("forbidden"), "{error}");
}
