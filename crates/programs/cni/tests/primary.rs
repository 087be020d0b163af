//! Tests the owned mode with the distribution's reference plugins, in namespaces: bridge, host-local and portmap set up
//! a pod's network and remove it completely.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "clippy knows helpers of unit tests only"
)]

use std::{
    fs,
    io::Write as _,
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Command, Output, Stdio},
};

use ambit_netlab::Namespace;
use serde_json::{Value, json};

/// Directory of the distribution's CNI plugins.
const PLUGIN_DIR: &str = "/usr/lib/cni";

struct Node {
    namespace: Namespace,
    dir: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        let node = Self {
            namespace: Namespace::new("node", &[]).unwrap(),
            dir: tempfile::tempdir().unwrap(),
        };
        fs::create_dir(node.dir.path().join("net.d")).unwrap();
        node
    }

    fn write_primary_conf(&self, file: &str, config: &Value) {
        fs::write(self.dir.path().join("net.d").join(file), config.to_string()).unwrap();
    }

    /// Calls the plugin as the node's runtime does; returns its output.
    fn call_plugin(&self, command: &str, pod: &Namespace, config: &Value) -> Output {
        let mut run = Command::new(env!("CARGO_BIN_EXE_ambit-cni"));
        run.env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", "c0ffee")
            .env("CNI_NETNS", pod.path())
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", PLUGIN_DIR)
            .env("XTABLES_LOCKFILE", self.dir.path().join("xtables.lock"))
            .env(
                "CNI_ARGS",
                "IgnoreUnknown=1;K8S_POD_NAME=web;K8S_POD_NAMESPACE=kube-system",
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = self.namespace.spawn(&mut run).unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(config.to_string().as_bytes()).unwrap();
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
        output
    }

    fn config(&self, version: &str) -> Value {
        json!({
            "cniVersion": version,
            "name": "net",
            "type": "ambit-cni",
            "cni_agent_run_dir": self.dir.path(),
            "exclude_namespaces": ["kube-system"],
            "runtimeConfig": {"portMappings":
                [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]},
            "delegate": {
                "netDir": self.dir.path().join("net.d"),
                "stateDir": self.dir.path().join("state"),
            },
        })
    }

    fn ipam(&self) -> Value {
        json!({
            "type": "host-local",
            "dataDir": self.dir.path().join("ipam"),
            "ranges": [[{"subnet": "10.9.0.0/24"}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        })
    }

    fn leases(&self) -> usize {
        let leases = fs::read_dir(self.dir.path().join("ipam/net")).unwrap();
        let names = leases.map(|lease| lease.unwrap().file_name());
        names
            .filter(|name| name.to_string_lossy().starts_with("10."))
            .count()
    }

    fn nat_rules(&self) -> String {
        let output = self.namespace.run("iptables-save", ["-t", "nat"]).unwrap();
        String::from_utf8(output.stdout).unwrap()
    }
}

#[test]
fn reference_plugins_add_and_delete_a_pod() {
    assert!(
        Path::new(PLUGIN_DIR).join("bridge").exists(),
        "cargo xtask setup installs them"
    );
    let (node, pod) = (Node::new(), Namespace::new("pod", &[]).unwrap());
    let list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
        {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": node.ipam()},
        {"type": "portmap", "capabilities": {"portMappings": true}, "snat": false}]});
    node.write_primary_conf("10-net.conflist", &list);
    let mut config = node.config("1.0.0");
    let result = node.call_plugin("ADD", &pod, &config);
    let result: Value = serde_json::from_slice(&result.stdout).unwrap();
    assert_eq!(result["ips"][0]["address"], "10.9.0.2/24");
    let listen = || TcpListener::bind("10.9.0.1:7000").unwrap();
    let _gateway = node.namespace.run_inside(listen).unwrap();
    let connect = || TcpStream::connect("10.9.0.1:7000").unwrap();
    drop(pod.run_inside(connect).unwrap());
    assert!(
        node.nat_rules().contains("--to-destination 10.9.0.2:80"),
        "{}",
        node.nat_rules()
    );
    config["prevResult"] = result;
    // The owner replaces the configuration meanwhile.
    node.write_primary_conf(
        "10-net.conflist",
        &json!({"name": "net", "plugins": [{"type": "nowhere"}]}),
    );
    node.call_plugin("DEL", &pod, &config);
    assert_eq!(node.leases(), 0);
    assert!(
        !node.nat_rules().contains("10.9.0.2"),
        "{}",
        node.nat_rules()
    );
    let links = pod.run("ip", ["-o", "link"]).unwrap();
    assert!(!String::from_utf8(links.stdout).unwrap().contains("eth0"));
}

#[test]
fn old_primary_configuration_serves_a_newer_runtime() {
    let (node, pod) = (Node::new(), Namespace::new("pod", &[]).unwrap());
    let single = json!({"cniVersion": "0.3.1", "name": "net", "type": "ptp", "ipam": node.ipam()});
    node.write_primary_conf("10-net.conf", &single);
    let mut config = node.config("1.0.0");
    let result = node.call_plugin("ADD", &pod, &config);
    let result: Value = serde_json::from_slice(&result.stdout).unwrap();
    assert_eq!(result["cniVersion"], "1.0.0");
    assert_eq!(
        result["ips"][0]["version"],
        Value::Null,
        "1.0.0 has no such member"
    );
    assert_eq!(node.leases(), 1);
    config["prevResult"] = result;
    node.call_plugin("CHECK", &pod, &config);
    node.call_plugin("DEL", &pod, &config);
    assert_eq!(node.leases(), 0);
}
