//! Tests the owned mode: the plugin's executable as the only plugin of a list, with scripted primary plugins.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "clippy knows helpers of unit tests only"
)]

mod common;

use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use serde_json::{Value, json};

use common::wait_until_asleep;

/// Shell script of a primary plugin: records its input, and prints the prepared `RESULT.KIND` or `FAIL.KIND`.
const FAKE_PLUGIN: &str = r#"#!/bin/sh
kind=$(basename "$0")
dir=$(dirname "$0")/..
stdin=$(cat)
n=$(ls "$dir/calls" | wc -l)
printf '%s' "$stdin" > "$dir/calls/$(printf %03d "$n").$CNI_COMMAND.$kind"
if [ -e "$dir/FAIL.$CNI_COMMAND.$kind" ]; then cat "$dir/FAIL.$CNI_COMMAND.$kind"; exit 1; fi
if [ "$CNI_COMMAND" = ADD ]; then cat "$dir/RESULT.$kind"; fi
"#;

/// Directories of a node, with scripted plugins and the records of their calls.
struct Node {
    dir: tempfile::TempDir,
}

/// Recorded call of a scripted plugin.
#[derive(Debug, PartialEq)]
struct RecordedCall {
    command: String,
    kind: String,
    config: Value,
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["net.d", "bin", "run", "calls"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let node = Self { dir };
        for kind in ["bridge", "portmap", "other"] {
            node.write_plugin(kind);
        }
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write_plugin(&self, kind: &str) {
        let path = self.path("bin").join(kind);
        fs::write(&path, FAKE_PLUGIN).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        self.write_result(kind, "1.0.0");
    }

    fn write_result(&self, kind: &str, version: &str) {
        let result =
            json!({"cniVersion": version, "by": kind, "ips": [{"address": "10.0.0.5/24"}]});
        fs::write(self.path(&format!("RESULT.{kind}")), result.to_string()).unwrap();
    }

    fn write_primary_conf(&self, file: &str, config: &Value) {
        fs::write(self.path("net.d").join(file), config.to_string()).unwrap();
    }

    fn default_config(&self) -> Value {
        let list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
            {"type": "bridge", "mtu": 1.50},
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "ambit-cni", "left": "by the chained mode"}]});
        self.write_primary_conf("10-net.conflist", &list);
        list
    }

    fn config(&self, version: &str) -> Value {
        json!({
            "cniVersion": version,
            "name": "net",
            "type": "ambit-cni",
            "cni_agent_run_dir": self.path("run"),
            "pod_namespace": "istio-system",
            "exclude_namespaces": ["kube-system"],
            "agent_wait_seconds": 0,
            "delegate": {"netDir": self.path("net.d"), "stateDir": self.path("state")},
        })
    }

    fn start(&self, command: &str, config: &Value, container: &str) -> std::process::Child {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ambit-cni"))
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", container)
            .env("CNI_NETNS", "/var/run/netns/cni-1")
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", self.path("bin"))
            .env("CNI_ARGS", "K8S_POD_NAME=web;K8S_POD_NAMESPACE=kube-system")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(config.to_string().as_bytes()).unwrap();
        child
    }

    fn run(&self, command: &str, config: &Value) -> Output {
        let child = self.start(command, config, "c0ffee");
        child.wait_with_output().unwrap()
    }

    fn run_successfully(&self, command: &str, config: &Value) -> Option<Value> {
        let output = self.run(command, config);
        assert!(output.status.success(), "{command}: {output:?}");
        serde_json::from_slice(&output.stdout).ok()
    }

    fn run_failing(&self, command: &str, config: &Value) -> Value {
        let output = self.run(command, config);
        assert_eq!(output.status.code(), Some(1), "{command}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Returns and removes the calls recorded since the last time.
    fn take_calls(&self) -> Vec<RecordedCall> {
        let entries = fs::read_dir(self.path("calls")).unwrap();
        let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        let read = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap();
            let (command, kind) = name[4..].split_once('.').unwrap();
            let config = serde_json::from_slice(&fs::read(path).unwrap()).unwrap_or(Value::Null);
            fs::remove_file(path).unwrap();
            RecordedCall {
                command: command.to_owned(),
                kind: kind.to_owned(),
                config,
            }
        };
        paths.iter().map(read).collect()
    }

    /// Returns the calls recorded since the last time, each as command and plugin.
    fn called_plugins(&self) -> Vec<String> {
        let take_calls = self.take_calls();
        let text =
            |take_calls: &RecordedCall| format!("{} {}", take_calls.command, take_calls.kind);
        take_calls.iter().map(text).collect()
    }

    fn stored_attachments(&self) -> usize {
        fs::read_dir(self.path("state")).map_or(0, Iterator::count)
    }
}

#[test]
fn primary_plugins_are_called_as_by_a_runtime() {
    let node = Node::new();
    node.default_config();
    let mut config = node.config("1.0.0");
    config["runtimeConfig"] = json!({"portMappings": [{"hostPort": 80}], "mac": "x"});
    let result = node.run_successfully("ADD", &config).unwrap();
    assert_eq!(result["by"], "portmap", "the last one's result");
    let [bridge, portmap] = &node.take_calls()[..] else {
        panic!("two plugins");
    };
    assert_eq!(
        bridge.config,
        json!({"type": "bridge", "mtu": 1.50, "cniVersion": "1.0.0", "name": "net"})
    );
    assert_eq!(portmap.config["prevResult"]["by"], "bridge");
    assert_eq!(
        portmap.config["runtimeConfig"],
        json!({"portMappings": [{"hostPort": 80}]}),
        "what it is capable of, and no more"
    );
    config["prevResult"] = result;
    node.run_successfully("CHECK", &config);
    assert_eq!(node.called_plugins(), ["CHECK bridge", "CHECK portmap"]);
    assert_eq!(node.stored_attachments(), 1);
    node.run_successfully("DEL", &config);
    let take_calls = node.take_calls();
    assert_eq!(take_calls[0].kind, "portmap", "in reverse");
    assert_eq!(take_calls[1].kind, "bridge");
    assert_eq!(take_calls[1].config["prevResult"]["by"], "portmap");
    assert_eq!(node.stored_attachments(), 0);
}

#[test]
fn del_calls_the_plugins_of_add() {
    let node = Node::new();
    node.default_config();
    let config = node.config("1.0.0");
    node.run_successfully("ADD", &config);
    node.take_calls();
    // Another primary CNI replaces the first.
    fs::remove_file(node.path("net.d").join("10-net.conflist")).unwrap();
    let other = json!({"cniVersion": "1.0.0", "name": "new", "plugins": [{"type": "other"}]});
    node.write_primary_conf("05-new.conflist", &other);
    assert_eq!(
        node.start("ADD", &config, "second").wait().unwrap().code(),
        Some(0)
    );
    assert_eq!(node.called_plugins(), ["ADD other"]);
    node.run_successfully("CHECK", &config);
    node.run_successfully("DEL", &config);
    assert_eq!(
        node.called_plugins(),
        ["CHECK bridge", "CHECK portmap", "DEL portmap", "DEL bridge"]
    );
    // Pods from before the installation are deleted by the current plugins.
    node.run_successfully("DEL", &config);
    assert_eq!(node.called_plugins(), ["DEL other"]);
    // Without any plugins, deletion succeeds.
    fs::remove_file(node.path("net.d").join("05-new.conflist")).unwrap();
    node.run_successfully("DEL", &config);
    assert_eq!(node.called_plugins(), [""; 0]);
}

#[test]
fn error_of_the_primary_is_passed_on() {
    let node = Node::new();
    node.default_config();
    let error = json!({"cniVersion": "1.0.0", "code": 107, "msg": "no more", "details": "10/24"});
    fs::write(node.path("FAIL.ADD.portmap"), error.to_string()).unwrap();
    let config = node.config("1.0.0");
    let reported = node.run_failing("ADD", &config);
    assert_eq!(
        (&reported["code"], &reported["msg"], &reported["details"]),
        (&json!(107), &json!("no more"), &json!("10/24"))
    );
    assert_eq!(node.called_plugins(), ["ADD bridge", "ADD portmap"]);
    // The runtime cleans up afterwards.
    node.run_successfully("DEL", &config);
    assert_eq!(node.called_plugins(), ["DEL portmap", "DEL bridge"]);
    // The runtime retries a failed DEL: the record must be kept.
    fs::remove_file(node.path("FAIL.ADD.portmap")).unwrap();
    node.run_successfully("ADD", &config);
    fs::write(node.path("FAIL.DEL.bridge"), "no JSON").unwrap();
    let reported = node.run_failing("DEL", &config);
    assert_eq!(reported["code"], 100);
    assert!(reported["details"].as_str().unwrap().contains("no JSON"));
    assert_eq!(node.stored_attachments(), 1);
    let log = fs::read_to_string(node.path("run").join("ambit-cni.log")).unwrap();
    assert!(log.contains("no more") && log.contains("DEL"), "{log}");
}

#[test]
fn missing_plugin_is_named() {
    let node = Node::new();
    for kind in ["nowhere", "../bin/bridge"] {
        let list = json!({"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": kind}]});
        node.write_primary_conf("10-net.conflist", &list);
        let error = node.run_failing("ADD", &node.config("1.0.0"));
        assert!(error["msg"].as_str().unwrap().contains(kind), "{error}");
    }
}

#[test]
fn versions_differ_between_the_runtime_and_the_primary() {
    let node = Node::new();
    node.write_result("bridge", "0.3.1");
    let single = json!({"cniVersion": "0.3.1", "name": "old", "type": "bridge"});
    node.write_primary_conf("10-net.conf", &single);
    let config = node.config("1.0.0");
    let result = node.run_successfully("ADD", &config).unwrap();
    assert_eq!(result["cniVersion"], "1.0.0");
    assert_eq!(node.take_calls()[0].config["cniVersion"], "0.3.1");
    node.run_successfully("CHECK", &config);
    assert_eq!(node.called_plugins(), [""; 0], "0.3.1 has no CHECK");
    let future = json!({"cniVersion": "7.0.0", "name": "new", "plugins": [{"type": "bridge"}]});
    fs::remove_file(node.path("net.d").join("10-net.conf")).unwrap();
    node.write_primary_conf("10-net.conflist", &future);
    assert_eq!(node.run_failing("ADD", &config)["code"], 1);
}

#[test]
fn status_and_gc_reach_the_primary() {
    let node = Node::new();
    let list = json!({"cniVersion": "1.1.0", "name": "net", "plugins": [
        {"type": "bridge"}, {"type": "portmap"}]});
    let config = node.config("1.1.0");
    let absent = node.run_failing("STATUS", &config);
    assert_eq!(absent["code"], 50, "{absent}");
    node.write_primary_conf("10-net.conflist", &list);
    node.run_successfully("STATUS", &config);
    assert_eq!(node.called_plugins(), ["STATUS bridge", "STATUS portmap"]);
    let error = json!({"cniVersion": "1.1.0", "code": 51, "msg": "half"});
    fs::write(node.path("FAIL.STATUS.bridge"), error.to_string()).unwrap();
    assert_eq!(node.run_failing("STATUS", &config)["code"], 51);
    node.run_successfully("ADD", &config);
    node.take_calls();
    let mut gc = config.clone();
    let valid = json!([{"containerID": "c0ffee", "ifname": "eth0"}]);
    gc["cni.dev/valid-attachments"] = valid.clone();
    node.run_successfully("GC", &gc);
    let take_calls = node.take_calls();
    assert_eq!(take_calls[1].config["cni.dev/valid-attachments"], valid);
    assert_eq!(node.stored_attachments(), 1);
    gc["cni.dev/valid-attachments"] = json!([]);
    fs::write(node.path("FAIL.GC.bridge"), error.to_string()).unwrap();
    node.run_failing("GC", &gc);
    assert_eq!(
        node.called_plugins(),
        ["GC bridge", "GC portmap"],
        "the others all the same"
    );
    assert_eq!(node.stored_attachments(), 0);
    // Commands that the primary's version lacks call no plugin.
    let list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge"}]});
    node.write_primary_conf("10-net.conflist", &list);
    node.run_successfully("STATUS", &config);
    node.run_successfully("GC", &config);
    assert_eq!(node.called_plugins(), [""; 0]);
}

#[test]
fn missing_or_incomplete_primary_is_waited_for() {
    let node = Node::new();
    let list = node.default_config().to_string();
    let path = node.path("net.d").join("10-net.conflist");
    let fallback = json!({"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "other"}]});
    node.write_primary_conf("87-other.conflist", &fallback);
    fs::write(&path, &list[..20]).unwrap();
    let config = node.config("1.0.0");
    let child = node.start("ADD", &config, "c0ffee");
    wait_until_asleep(child.id());
    fs::write(&path, &list).unwrap();
    assert!(child.wait_with_output().unwrap().status.success());
    assert_eq!(node.called_plugins(), ["ADD bridge", "ADD portmap"]);
    for file in ["10-net.conflist", "87-other.conflist"] {
        fs::remove_file(node.path("net.d").join(file)).unwrap();
    }
    let mut patient = config.clone();
    patient["agent_wait_seconds"] = json!(60);
    let child = node.start("ADD", &patient, "c0ffee");
    wait_until_asleep(child.id());
    node.default_config();
    assert!(child.wait_with_output().unwrap().status.success());
    fs::remove_file(&path).unwrap();
    let error = node.run_failing("ADD", &config);
    assert_eq!(error["code"], 50, "{error}");
    assert!(error["msg"].as_str().unwrap().contains("net.d"), "{error}");
}

#[test]
fn recursive_call_is_an_error() {
    let node = Node::new();
    node.default_config();
    let back = format!(
        "#!/bin/sh\nexec {} <<EOF\n{}\nEOF\n",
        env!("CARGO_BIN_EXE_ambit-cni"),
        node.config("1.0.0")
    );
    fs::write(node.path("bin").join("bridge"), back).unwrap();
    let error = node.run_failing("ADD", &node.config("1.0.0"));
    assert_eq!(error["code"], 7, "{error}");
    assert!(
        error["details"].as_str().unwrap().contains("chained"),
        "{error}"
    );
}

#[test]
fn pods_wait_for_the_agent_after_network_setup() {
    let node = Node::new();
    node.default_config();
    let mut config = node.config("1.0.0");
    config["exclude_namespaces"] = json!([]);
    assert_eq!(node.run_failing("ADD", &config)["code"], 11);
    assert_eq!(node.called_plugins(), ["ADD bridge", "ADD portmap"]);
    // The copy on disk lets pods start that were outside of the mesh, as after a boot.
    let copy = node.path("net.d").join("ambit-cni.membership");
    fs::write(&copy, r#"{"version":1,"namespaces":{"kube-system":false}}"#).unwrap();
    config["membership"] = json!(copy);
    node.run_successfully("ADD", &config);
}
