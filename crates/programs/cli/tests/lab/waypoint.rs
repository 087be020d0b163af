//! Tests of the waypoints that Gateways create in a lab, with a stand-in for `ambit-waypoint`: it checks its
//! environment and reports that it is ready.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
};

use tempfile::TempDir;

use crate::support::{Lab, ambit};

const FAKE_PROGRAM: &str = r#"#!/bin/sh
set -eu
test -s "$XDS_ROOT_CA" && test -s "$AUTH_TOKEN"
echo "$* of $GATEWAY_NAME, account $SERVICE_ACCOUNT, control plane $XDS_ADDRESS"
exec ambit-lab-tool serve --port 15021 --name "$GATEWAY_NAME"
"#;

/// Creates a directory with links to the mesh's programs, and with the stand-in as `ambit-waypoint`.
fn fake_programs() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for name in [
        "ambit-agent",
        "ambit-node-proxy",
        "ambit-control",
        "ambit-cni",
    ] {
        let program = Path::new(ambit()).with_file_name(name);
        assert!(
            program.exists(),
            "{name} is not built: use `cargo xtask test`"
        );
        symlink(program, dir.path().join(name)).unwrap();
    }
    let stand_in = dir.path().join("ambit-waypoint");
    fs::write(&stand_in, FAKE_PROGRAM).unwrap();
    fs::set_permissions(&stand_in, fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

fn gateway_manifest(annotations: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\n\
         metadata: {{name: way, namespace: test, annotations: {annotations}}}\n\
         spec:\n  gatewayClassName: istio-waypoint\n  \
         listeners: [{{name: mesh, port: 15008, protocol: HBONE}}]\n"
    )
}

/// Manifest of a namespace in the mesh; the waypoint's own pod is not captured.
const NAMESPACE_MANIFEST: &str = "apiVersion: v1\nkind: Namespace\n\
                         metadata: {name: test, labels: {istio.io/dataplane-mode: ambient}}\n";

#[test]
fn a_gateway_runs_a_waypoint_that_is_restarted_and_goes_with_it() {
    let programs = fake_programs();
    let lab = Lab::new();
    lab.write("namespace.yaml", NAMESPACE_MANIFEST)
        .write("gateway.yaml", &gateway_manifest("{}"));
    let bin_dir = programs.path().to_str().unwrap();
    lab.run_ok(&["up", "MANIFESTS", "--nodes", "2", "--bin-dir", bin_dir]);
    let log = lab.run_ok(&["logs", "test/way"]);
    assert!(
        log.contains("proxy waypoint of way, account way, control plane https://172.18.0.2:15012"),
        "{log}"
    );
    let pod = lab.exec("test/way", &["hostname"]).1;
    assert!(pod.starts_with("way-"), "{pod}");
    let status = || -> serde_json::Value {
        serde_json::from_str(&lab.run_ok(&["status", "-o", "json"])).unwrap()
    };
    let first = status()["pods"][0].clone();
    assert_eq!(first["captured"], false, "{first}");

    // It finds the control plane.
    let metrics = "http://172.18.0.2:15014/metrics";
    let reached = lab.exec("test/way", &["ambit-lab-tool", "get", metrics]);
    assert_eq!(reached.0, 0, "{}", reached.1);

    lab.exec("test/way", &["pkill", "-f", "lab-tool serve --port 15021"]);
    lab.wait_for("the restart", |_| {
        let container = &status()["pods"][0]["containers"][0];
        container["restarts"] == 1 && container["ready"] == true
    });
    lab.write(
        "gateway.yaml",
        &gateway_manifest("{ambit.io/waypoint-replicas: '2'}"),
    );
    let ready = |expected: usize| {
        lab.wait_for("the pods", |_| {
            let status = status();
            let pods = status["pods"].as_array().unwrap();
            pods.len() == expected && pods.iter().all(|pod| pod["ready"] == true)
        });
    };
    ready(2);
    lab.remove("gateway.yaml");
    ready(0);
}

#[test]
fn waypoints_are_made_listed_and_deleted_from_the_command_line() {
    let programs = fake_programs();
    let lab = Lab::new();
    lab.write("namespace.yaml", NAMESPACE_MANIFEST).write(
        "gateway.yaml",
        &gateway_manifest("{ambit.io/waypoint-replicas: many}"),
    );
    let bin_dir = programs.path().to_str().unwrap();
    lab.run_ok(&["up", "MANIFESTS", "--nodes", "1", "--bin-dir", bin_dir]);
    let in_lab = &["--lab", "default"];
    let waypoint = |args: &[&str]| lab.command_ok(&[&["waypoint"], args, in_lab].concat());
    let made = waypoint(&[
        "apply", "--name", "two", "-n", "test", "--for", "all", "--wait",
    ]);
    assert!(made.contains("waypoint test/two is ready"), "{made}");
    let list = waypoint(&["list"]);
    assert_eq!(list, waypoint(&["list", "-A"]));
    let line = |text: &str, word: &str| -> Vec<String> {
        let found = text.lines().find(|line| line.contains(word)).unwrap();
        found.split_whitespace().map(ToOwned::to_owned).collect()
    };
    assert_eq!(
        line(&list, "two"),
        ["test", "two", "default", "all", "True"]
    );
    assert_eq!(
        line(&list, "way "),
        ["test", "way", "default", "default", "False"]
    );
    let status = waypoint(&["status", "way", "-n", "test"]);
    assert!(status.contains("is not a number of pods"), "{status}");
    // What is in a manifest of the user's own is neither changed nor deleted.
    for args in [&["apply", "--name", "way"][..], &["delete", "way"]] {
        let args = [&["waypoint"], args, &["-n", "test"], in_lab].concat();
        assert!(!lab.command(&args).status.success(), "{args:?}");
    }
    waypoint(&["delete", "two", "-n", "test"]);
    lab.wait_for("its end", |_| {
        !waypoint(&["list", "-n", "test"]).contains("two")
    });
}
