//! Tests of a lab's pods, services and networks.

use std::{fs, os::unix::fs::PermissionsExt};

use crate::support::{
    Lab, SERVE_COMMAND, SLEEP_COMMAND, TIMEOUT, pod_manifest, service_manifest, wait_until,
};

#[test]
fn exec_returns_exit_code_and_output() {
    let lab = Lab::new();
    lab.write("pod.yaml", &pod_manifest("a", SLEEP_COMMAND))
        .up(&[]);
    assert_eq!(
        lab.exec("test/a", &["sh", "-c", "echo out; exit 7"]),
        (7, "out".into())
    );
    assert_eq!(lab.exec("a", &["sh", "-c", "kill -9 $$"]).0, 137);
    assert_eq!(lab.exec("a", &["no-such-program"]).0, 127);
    assert_eq!(lab.exec("a", &["hostname"]), (0, "a".into()));
    let (_, hosts) = lab.exec("a", &["cat", "/etc/hosts"]);
    assert!(hosts.contains("10.244.1.2 a"), "{hosts}");
    let unknown = lab.run(&["exec", "nobody", "--", "true"]);
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("no pod"));
}

#[test]
fn names_resolve_and_services_reach_ready_pods() {
    for family in ["ipv4", "ipv6", "dual"] {
        let lab = Lab::new();
        lab.write(
            "pods.yaml",
            &(pod_manifest("client", SLEEP_COMMAND) + &pod_manifest("web", SERVE_COMMAND)),
        );
        let both = ", ipFamilyPolicy: PreferDualStack";
        lab.write(
            "services.yaml",
            &(service_manifest("web", both) + &service_manifest("none", both)),
        );
        let headless =
            service_manifest("web", ", clusterIP: None").replace("name: web, n", "name: each, n");
        lab.write("headless.yaml", &headless);
        lab.up(&["--ip-family", family]);
        let get = |url: &str| lab.exec("client", &["ambit-lab-tool", "get", url]);
        for url in [
            "http://web",
            "http://web.test.svc.cluster.local/x",
            "http://each:8080",
        ] {
            let (code, answer) = get(url);
            assert_eq!(code, 0, "{family} {url}: {answer}");
            assert!(answer.contains("web in web, called by"), "{answer}");
        }
        // A service without endpoints refuses at once, an unknown name does not resolve.
        let (code, answer) = get("http://none");
        assert!(
            code == 7 && answer.contains("refused"),
            "{family}: {answer}"
        );
        assert_eq!(get("http://nobody").0, 6);
        if family == "dual" {
            let (_, answer) = lab.exec("client", &["getent", "ahosts", "web"]);
            assert!(
                answer.contains("10.96.") && answer.contains("fd00:10:96::"),
                "{answer}"
            );
        }
    }
}

#[test]
fn a_pod_reaches_itself_through_its_service() {
    let lab = Lab::new();
    lab.write(
        "web.yaml",
        &(pod_manifest("web", SERVE_COMMAND) + &service_manifest("web", "")),
    )
    .up(&[]);
    // By the longer name: the short one is its own host name.
    // Ready from its start, for it has no probe; it listens a moment later.
    lab.wait_for("an answer", |_| {
        lab.exec("web", &["ambit-lab-tool", "get", "http://web.test"])
            .0
            == 0
    });
}

#[test]
fn logs_are_stored_and_followed() {
    let lab = Lab::new();
    let command = "[sh, -c, 'echo first; echo second >&2; exec ambit-lab-tool sleep']";
    lab.write("pod.yaml", &pod_manifest("a", command)).up(&[]);
    lab.wait_for("both lines", |_| {
        lab.run_ok(&["logs", "a"]) == "first\nsecond\n"
    });
    assert!(!lab.run(&["logs", "proxy"]).status.success());
}

#[test]
fn manifests_are_followed_while_the_lab_is_up() {
    let lab = Lab::new();
    lab.write("a.yaml", &pod_manifest("a", SLEEP_COMMAND))
        .up(&[]);
    lab.write(
        "b.yaml",
        &(pod_manifest("b", SERVE_COMMAND) + &service_manifest("b", "")),
    );
    lab.wait_for("the new pod", |status| {
        status.contains("b ") && status.matches("1/1").count() == 2
    });
    let get = ["ambit-lab-tool", "get", "http://b"];
    // Ready from its start, for it has no probe; it listens a moment later.
    lab.wait_for("an answer", |_| lab.exec("a", &get).0 == 0);
    lab.write(
        "bad.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: B!}\n",
    );
    lab.wait_for("the problem", |status| status.contains("bad.yaml:1"));
    assert_eq!(lab.exec("a", &get).0, 0);
    lab.remove("bad.yaml");
    lab.remove("b.yaml");
    lab.wait_for("the end of the pod", |status| {
        !status.contains("problem") && status.matches("1/1").count() == 1
    });
    assert_eq!(lab.exec("a", &get).0, 6);
}

#[test]
fn containers_restart_by_their_policy() {
    let lab = Lab::new();
    let once =
        pod_manifest("once", "['true']").replace("spec:\n", "spec:\n  restartPolicy: Never\n");
    let failing =
        pod_manifest("failing", "['false']").replace("spec:\n", "spec:\n  restartPolicy: Never\n");
    let crash = pod_manifest("crash", "['false']");
    lab.write("pods.yaml", &(once + &failing + &crash))
        .up(&["--wait", "0"]);
    let line = |status: &str, name: &str| {
        status
            .lines()
            .find(|line| line.contains(name))
            .unwrap_or_default()
            .to_owned()
    };
    lab.wait_for("all three ends", |status| {
        let restarts = line(status, "crash")
            .split_whitespace()
            .any(|word| matches!(word, "2" | "3"));
        line(status, "once").contains("Succeeded")
            && line(status, "failing").contains("Failed")
            && restarts
    });
}

#[test]
fn probes_decide_who_is_ready() {
    let lab = Lab::new();
    let probed = |name: &str, probe: &str| {
        pod_manifest(name, SERVE_COMMAND)
            .replace("command", &format!("readinessProbe: {{{probe}}}, command"))
    };
    let pods = probed("http", "httpGet: {path: /, port: 8080}")
        + &probed("tcp", "tcpSocket: {port: 8080}")
        + &probed("exec", "exec: {command: [test, -e, /etc/hosts]}")
        + &probed("closed", "tcpSocket: {port: 8081}, failureThreshold: 1")
        + &probed(
            "missing",
            "exec: {command: [test, -e, /nowhere]}, failureThreshold: 1",
        );
    lab.write("pods.yaml", &pods).up(&["--wait", "0"]);
    lab.wait_for("three ready pods", |status| {
        status.matches("1/1").count() == 3
    });
    let status = lab.run_ok(&["status"]);
    for name in ["closed", "missing"] {
        let line = status.lines().find(|line| line.contains(name)).unwrap();
        assert!(line.contains("0/1"), "{line}");
    }
}

#[test]
fn init_containers_run_first_and_missing_commands_are_errors() {
    let lab = Lab::new();
    let file = tempfile::tempdir().unwrap();
    let mark = file.path().join("mark");
    let mark = mark.to_str().unwrap();
    let with_init = pod_manifest(
        "a",
        &format!("[sh, -c, 'cat {mark}; exec ambit-lab-tool sleep']"),
    )
    .replace(
        "  containers",
        &format!(
            "  initContainers: [{{name: i, command: [sh, -c, 'echo made > {mark}']}}]\n  containers"
        ),
    );
    let image = "apiVersion: v1\nkind: Pod\nmetadata: {name: image}\nspec: {containers: [{name: c, image: nginx}]}\n";
    lab.write("pods.yaml", &(with_init + image))
        .up(&["--wait", "0"]);
    lab.wait_for("both", |status| {
        status.contains("1/1") && status.contains("NoCommand")
    });
    lab.wait_for("the mark", |_| lab.run_ok(&["logs", "a"]) == "made\n");
}

#[test]
fn failed_call_of_a_plugin_may_repeat_in_another_namespace() {
    let lab = Lab::new();
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // Stands in front of the real plugin: fails twice, and notes what it was called for.
    let script = format!(
        "#!/bin/sh\necho \"$CNI_COMMAND $CNI_NETNS $(stat -Lc %i $CNI_NETNS) $CNI_ARGS\" >> {0}/calls\n\
         if [ $CNI_COMMAND = ADD ] && [ $(grep -c ^ADD {0}/calls) -le 2 ]; then\n\
         echo '{{\"code\":11,\"msg\":\"come again\"}}'; exit 1; fi\n\
         exec /usr/lib/cni/ptp\n",
        dir.path().display()
    );
    let plugin = dir.path().join("ptp");
    fs::write(&plugin, script).unwrap();
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink("/usr/lib/cni/host-local", dir.path().join("host-local")).unwrap();
    lab.write("pod.yaml", &pod_manifest("a", SLEEP_COMMAND));
    lab.up(&[
        "--primary-cni",
        "ptp",
        "--cni-dir",
        dir.path().to_str().unwrap(),
    ]);
    let calls = fs::read_to_string(dir.path().join("calls")).unwrap();
    let of = |verb: &str| -> Vec<Vec<&str>> {
        let lines = calls.lines().filter(|line| line.starts_with(verb));
        lines.map(|line| line.split(' ').collect()).collect()
    };
    let (adds, dels) = (of("ADD"), of("DEL"));
    assert_eq!((adds.len(), dels.len()), (3, 2), "{calls}");
    let uid = |args: &str| args.rsplit_once("K8S_POD_UID=").unwrap().1.to_owned();
    assert_eq!(uid(adds[0][3]), uid(adds[2][3]));
    let sandbox = |args: &str| args.split(';').nth(3).unwrap().to_owned();
    assert_ne!(sandbox(adds[0][3]), sandbox(adds[1][3]), "{calls}");
    // The failure was undone in the namespace in which it happened.
    assert_eq!(adds[0][2], dels[0][2], "{calls}");
}

#[test]
fn the_plugins_of_others_wire_pods_too() {
    for plugin in ["lab", "bridge", "ptp", "macvlan"] {
        let lab = Lab::new();
        // Both on one node, where a bridge would let replies pass the node by.
        lab.write(
            "pods.yaml",
            &(pod_manifest("client", SLEEP_COMMAND)
                + &pod_manifest("web", SERVE_COMMAND)
                + &service_manifest("web", "")),
        );
        lab.up(&["--primary-cni", plugin, "--nodes", "1"]);
        // The pod is ready before its server listens: it has no probe.
        wait_until(&format!("the server answers over {plugin}"), || {
            let get = ["ambit-lab-tool", "get", "http://web"];
            lab.exec("client", &get).0 == 0
        });
        if matches!(plugin, "lab" | "bridge") {
            assert_bridge_address_stable(&lab);
        }
    }
}

/// Asserts that the node's bridge keeps its MAC address while pods come: pods reach their node by it, and each change
/// stalls them.
fn assert_bridge_address_stable(lab: &Lab) {
    let on_node =
        pod_manifest("on-node", SLEEP_COMMAND).replace("spec:\n", "spec:\n  hostNetwork: true\n");
    lab.write("node.yaml", &on_node);
    lab.wait_for("the pod on the node", |status| {
        status.matches("1/1").count() == 3
    });
    let run = |script: &str| {
        let (code, output) = lab.exec("on-node", &["sh", "-c", script]);
        assert_eq!(code, 0, "{script}: {output}");
        output
    };
    let address = "ip -o link show dev cni0 | sed 's/.*ether //; s/ .*//'";
    let before = run(address);
    // Lower than any random address: by default the kernel takes the lowest one of all ports.
    for script in [
        "ip link add low address 02:00:00:00:00:01 type veth peer name other && ip link set low master cni0 up",
        "ip link del low",
    ] {
        run(script);
        assert_eq!(run(address), before, "{script}");
    }
}

#[test]
fn deployments_spread_and_a_deleted_pod_process_comes_back() {
    let lab = Lab::new();
    lab.write(
        "deployment.yaml",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: test}\nspec:\n  \
         replicas: 4\n  selector: {matchLabels: {app: web}}\n  template:\n    \
         metadata: {labels: {app: web}}\n    spec: {terminationGracePeriodSeconds: 1, \
         containers: [{name: c, command: [ambit-lab-tool, serve]}]}\n",
    );
    let status = lab.up(&["--nodes", "2"]);
    assert_eq!(
        (
            status.matches("node-1").count(),
            status.matches("node-2").count()
        ),
        (2, 2),
        "{status}"
    );
    let (code, _) = lab.exec(
        "deploy/web",
        &["sh", "-c", "pkill -n -f 'lab-tool [s]erve'; exit 3"],
    );
    assert_eq!(code, 3);
    lab.wait_for("the restart", |status| {
        status
            .lines()
            .any(|line| line.contains("web-") && line.split_whitespace().nth(4) == Some("1"))
    });
    assert!(TIMEOUT.as_secs() > 1);
}
