//! Tests of the command line with a mesh in a lab. They need the other binaries beside `ambit` (`cargo xtask test`
//! builds them).

use std::path::Path;

use crate::support::{Lab, SLEEP_COMMAND, ambit, pod_manifest, service_manifest};

fn binaries() {
    for name in [
        "ambit-agent",
        "ambit-node-proxy",
        "ambit-control",
        "ambit-cni",
        "ambit-waypoint",
        "ambit-lab-tool",
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
fn demonstration_has_the_results_of_its_manifests() {
    binaries();
    for family in ["ipv4", "ipv6"] {
        let lab = Lab::new();
        let text = lab.run_ok(&["demo", "--ip-family", family]);
        assert!(
            text.contains("Everything went as the manifests promise"),
            "{text}"
        );
        assert_eq!(lab.run_ok(&["list"]), "");
    }
}

#[test]
fn an_ordinary_user_has_the_whole_mesh() {
    binaries();
    let lab = Lab::unprivileged();
    let text = lab.run_ok(&["demo", "--ip-family", "dual"]);
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
    let echo = pod_manifest("echo", "[ambit-lab-tool, echo, --port, '8080']");
    // Keeps a connection open, for some seconds at a time: an attempt that a busy machine delays, by a
    // lost DNS answer for instance, is followed by another.
    let client = pod_manifest("client", "[timeout, '4', ambit-lab-tool, hold, 'echo:80']");
    lab.write(
        "pods.yaml",
        &(meshed.to_owned() + &echo + &client + &pod_manifest("idle", SLEEP_COMMAND)),
    );
    lab.write("service.yaml", &service_manifest("echo", ""));
    lab.run_ok(&["up", "MANIFESTS", "--nodes", "1"]);
    let in_lab = &["--lab", "default"];
    let show = |args: &[&str]| lab.command_ok(&[args, in_lab].concat());

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

    let of_pod = show(&["pod", "test/client"]);
    for part in [
        "test/client on node-1 is in the mesh",
        "by its labels: in",
        "redirection seen in the kernel: yes",
        "node proxy: serves it, ",
        "others reach it by: HBONE",
    ] {
        assert!(of_pod.contains(part), "{part}: {of_pod}");
    }
    let json = show(&["pod", "client", "-n", "test", "-o", "json"]);
    assert!(json.contains("\"verdict\": \"in\""), "{json}");
    let nobody = lab.command(&["pod", "test/nobody", "--lab", "default"]);
    assert_eq!(nobody.status.code(), Some(3));

    // The control plane's own view has the same form.
    let known = lab.command_ok(&["workloads", "--lab", "default", "--control", "-n", "test"]);
    assert!(
        known.contains("client") && known.contains("HBONE"),
        "{known}"
    );

    let explain = |port: &str| {
        let question = [
            "policy", "explain", "--from", "client", "--to", "svc/echo", "--port", port,
        ];
        lab.command(&[&question[..], in_lab].concat())
    };
    let answer = explain("80");
    assert!(String::from_utf8_lossy(&answer.stdout).contains("ALLOWED: no policy applies"));
    let asked = String::from_utf8_lossy(&answer.stderr);
    assert!(
        asked.contains("querying lab default, node node-1"),
        "{asked}"
    );
    assert_eq!(explain("81").status.code(), Some(3));
    let gone = lab.command(&["workloads", "--address", "http://127.0.0.1:1"]);
    assert_eq!(gone.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&gone.stderr).contains("hint:"));

    // Without flags a cluster is meant, and here is none.
    let no_cluster = lab.command(&["workloads"]);
    assert_eq!(no_cluster.status.code(), Some(4));
    let text = String::from_utf8_lossy(&no_cluster.stderr);
    assert!(text.contains("running labs: default"), "{text}");

    let strict = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\n\
                  metadata: {name: mine, namespace: test}\nspec: {mtls: {mode: STRICT}}\n";
    lab.write("strict.yaml", strict);
    let question = [
        "policy",
        "explain",
        "--from",
        "10.9.9.9",
        "--to",
        "echo.test",
        "--port",
        "80",
    ];
    lab.wait_for("the refusal", |_| {
        let answer = lab.command(&[&question[..], in_lab].concat());
        let text = String::from_utf8_lossy(&answer.stdout);
        answer.status.code() == Some(1) && text.contains("DENIED by PeerAuthentication test/mine")
    });

    // What has no effect is listed, by the lab and by the control plane alike.
    lab.write(
        "wrong.yaml",
        "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: s, namespace: test}\n---\n\
         apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: g, namespace: test}\n\
         spec: {gatewayClassName: nobodys, listeners: [{name: a, port: 80, protocol: HTTP}]}\n",
    );
    let all = ["nobodys", "Sidecar, which nothing reads"];
    lab.wait_for("the problems", |status| {
        all.iter().all(|one| status.contains(one))
    });
    let problems = show(&["problems"]);
    assert!(all.iter().all(|one| problems.contains(one)), "{problems}");
}
