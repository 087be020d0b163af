//! The command line against a mesh that runs in a lab. Needs the other binaries beside `ambit`
//! (`cargo xtask test` builds them).

use std::path::Path;

use crate::support::{Lab, SLEEP, ambit, pod, service};

fn binaries() {
    for name in [
        "ambit-agent",
        "ambit-node-proxy",
        "ambit-control",
        "ambit-cni",
        "ambit-waypoint",
    ] {
        let path = Path::new(ambit()).with_file_name(name);
        assert!(
            path.exists(),
            "{} is not built: use `cargo xtask test`",
            path.display()
        );
    }
}

#[test]
fn the_demonstration_keeps_what_its_manifests_promise() {
    binaries();
    for family in ["ipv4", "ipv6"] {
        let lab = Lab::new();
        let text = lab.ok(&["demo", "--ip-family", family]);
        assert!(
            text.contains("Everything went as the manifests promise"),
            "{text}"
        );
        assert_eq!(lab.ok(&["list"]), "");
    }
}

#[test]
fn an_ordinary_user_has_the_whole_mesh() {
    binaries();
    let lab = Lab::of_nobody();
    let text = lab.ok(&["demo", "--ip-family", "dual"]);
    assert!(
        text.contains("Everything went as the manifests promise"),
        "{text}"
    );
}

#[test]
fn commands_show_what_a_node_proxy_knows_and_does() {
    binaries();
    let lab = Lab::new();
    let meshed = "apiVersion: v1\nkind: Namespace\n\
                  metadata: {name: test, labels: {istio.io/dataplane-mode: ambient}}\n---\n";
    let echo = pod("echo", "[ambit, lab-tool, echo, --port, '8080']");
    // Keeps a connection open, for some seconds at a time: an attempt that a busy machine delays, by a
    // lost DNS answer for instance, is followed by another.
    let client = pod("client", "[timeout, '4', ambit, lab-tool, hold, 'echo:80']");
    lab.write(
        "pods.yaml",
        &(meshed.to_owned() + &echo + &client + &pod("idle", SLEEP)),
    );
    lab.write("service.yaml", &service("echo", ""));
    lab.ok(&["up", "MANIFESTS", "--nodes", "1"]);
    let show = |args: &[&str]| lab.command_ok(&[args, &["--node", "node-1"]].concat());

    let workloads = show(&["workloads", "-n", "test"]);
    assert!(
        workloads.contains("HBONE") && !workloads.contains("istio-system"),
        "{workloads}"
    );
    assert!(show(&["services"]).contains("1/1"));
    assert!(show(&["workloads", "-o", "json"]).starts_with('['));
    assert!(show(&["services", "-o", "yaml"]).contains("hostname: echo.test.svc.cluster.local"));
    lab.wait_for("the open connection", |_| {
        let connections = show(&["connections"]);
        connections.contains("test/client") && connections.contains("test/echo")
    });
    assert!(show(&["certificates"]).contains("spiffe://cluster.local/ns/test/sa/default"));
    assert!(show(&["log-level", "info,access=debug"]).contains("access=debug"));
    assert!(!show(&["log-level", "--reset"]).contains("access=debug"));

    // The control plane's own view has the same form.
    let known = lab.command_ok(&["workloads", "--control", "-n", "test"]);
    assert!(
        known.contains("client") && known.contains("HBONE"),
        "{known}"
    );

    let explain = |port: &str| {
        let question = [
            "policy", "explain", "--from", "client", "--to", "svc/echo", "--port", port,
        ];
        lab.command(&[&question[..], &["--node", "node-1"]].concat())
    };
    let answer = explain("80");
    assert!(String::from_utf8_lossy(&answer.stdout).contains("ALLOWED: no policy applies"));
    assert_eq!(explain("81").status.code(), Some(3));
    let gone = lab.command(&["workloads", "--address", "http://127.0.0.1:1"]);
    assert_eq!(gone.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&gone.stderr).contains("hint:"));
}
