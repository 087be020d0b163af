//! Tests the installation in real directories with inotify, and with a runtime that calls the installed plugin: by the
//! first configuration of the directory, read at each call.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use ambit_rt::Readiness;
use clap::Parser;
use serde_json::{Value, json};

use super::*;

/// Shell script of a primary plugin that records its call and assigns an address.
const FAKE_PLUGIN: &str = r#"#!/bin/sh
cat > /dev/null
echo "$CNI_COMMAND $(basename "$0")" >> "$(dirname "$0")/../calls"
[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.5/24"}]}'
exit 0
"#;

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    install: InstallArgs,
}

/// Directories of a node, on which the installation may be running.
struct TestNode {
    dir: tempfile::TempDir,
    readiness: Readiness,
    metrics: InstallMetrics,
}

impl TestNode {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["net.d", "bin", "source", "run"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let node = Self {
            dir,
            readiness: Readiness::new(),
            metrics: InstallMetrics::default(),
        };
        node.write_program("source", PLUGIN_NAME, "the plugin");
        for kind in ["bridge", "other"] {
            node.write_program("bin", kind, FAKE_PLUGIN);
        }
        let members = r#"{"version":1,"namespaces":{"shop":false}}"#;
        fs::write(node.path("run/membership.json"), members).unwrap();
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write_program(&self, directory: &str, name: &str, text: &str) {
        let path = self.path(directory).join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn start(&self, mode: &str) -> Installation {
        let path = |name: &str| self.path(name).to_str().unwrap().to_owned();
        let flags = [
            "test".to_owned(),
            format!("--cni-mode={mode}"),
            format!("--cni-net-dir={}", path("net.d")),
            format!("--cni-bin-dir={}", path("bin")),
            format!("--cni-source-dir={}", path("source")),
            format!("--cni-state-dir={}", path("state")),
            "--cni-agent-wait-seconds=0".to_owned(),
        ];
        Installation::start(
            &Flags::try_parse_from(flags).unwrap().install,
            self.path("run"),
            &["kube-system".to_owned()],
            self.metrics.clone(),
            self.readiness.add_pending_task("plugin"),
        )
    }

    fn write_primary_conf(&self, file: &str, kind: &str) -> String {
        let list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": kind}]});
        let text = serde_json::to_string_pretty(&list).unwrap();
        let path = self.path("net.d").join(file);
        fs::write(&path, &text).unwrap();
        text
    }

    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.path("net.d").join(file)).ok()
    }

    /// Returns the plugins of the first network configuration, which a runtime would use.
    fn effective_plugins(&self) -> Vec<String> {
        let files = directory::read(&self.path("net.d")).unwrap();
        let first = files.iter().find_map(|file| file.network().ok());
        let plugins = first.map(|network| network.plugins).unwrap_or_default();
        plugins.into_iter().map(|plugin| plugin.kind).collect()
    }

    async fn wait_until(&self, what: &str, holds: impl Fn() -> bool) {
        ambit_testkit::wait_until(what, holds).await;
    }

    async fn wait_for_plugins(&self, kinds: &[&str]) {
        self.wait_until(&format!("{kinds:?} in force"), || {
            self.effective_plugins() == kinds
        })
        .await;
    }

    /// Calls the only plugin of the first network configuration for a pod, as a runtime does.
    fn call_as_runtime(&self, command: &str, namespace: &str) -> Result<(), Value> {
        let files = directory::read(&self.path("net.d")).unwrap();
        let network = files.iter().find_map(|file| file.network().ok()).unwrap();
        let [plugin] = &network.plugins[..] else {
            panic!("one plugin: {network:?}");
        };
        let name = ambit_cni_conf::json::serialize_raw(&network.name).unwrap();
        let version = ambit_cni_conf::json::serialize_raw(&network.cni_version).unwrap();
        let config = plugin
            .config_with_members(&[("name", name), ("cniVersion", version)])
            .unwrap();
        let environment = ambit_cni::Environment {
            command: command.to_owned(),
            container_id: "c0ffee".to_owned(),
            netns: "/run/netns/x".to_owned(),
            interface: "eth0".to_owned(),
            path: self.path("bin").to_str().unwrap().to_owned(),
            args: format!("K8S_POD_NAME=web;K8S_POD_NAMESPACE={namespace}"),
            is_delegated: false,
        };
        let mut printed = Vec::new();
        let code = ambit_cni::run(
            &environment,
            config.as_bytes(),
            &mut printed,
            std::io::sink(),
        );
        if code == std::process::ExitCode::SUCCESS {
            Ok(())
        } else {
            Err(serde_json::from_slice(&printed).unwrap())
        }
    }

    fn recorded_calls(&self) -> Vec<String> {
        let path = self.path("calls");
        let text = fs::read_to_string(&path).unwrap_or_default();
        fs::remove_file(path).ok();
        text.lines().map(ToOwned::to_owned).collect()
    }

    fn installs_metric(&self, result: &'static str) -> u64 {
        let label = metrics::InstallResult { result };
        self.metrics.installs.get_or_create(&label).get()
    }
}

#[tokio::test]
async fn owned_it_stays_in_force_whatever_becomes_of_the_primary() {
    let node = TestNode::new();
    let installation = node.start("auto");
    node.wait_until("a plugin", || node.path("bin/ambit-cni").exists())
        .await;
    assert!(!node.readiness.is_ready(), "no primary yet");
    node.write_primary_conf("10-net.conflist", "bridge");
    node.wait_for_plugins(&[PLUGIN_NAME]).await;
    node.wait_until("ready", || node.readiness.is_ready()).await;
    assert_eq!(node.metrics.ready.get(), 1);
    // The pods of excluded namespaces and those known to be outside start without the agent.
    node.call_as_runtime("ADD", "kube-system").unwrap();
    node.call_as_runtime("ADD", "shop").unwrap();
    assert_eq!(node.recorded_calls(), ["ADD bridge", "ADD bridge"]);
    assert_eq!(
        node.call_as_runtime("ADD", "other").unwrap_err()["code"],
        11
    );
    // Rewritten by its owner: the next pod gets the new configuration, and the earlier pod ends with its old one.
    node.write_primary_conf("10-net.conflist", "other");
    node.recorded_calls();
    node.call_as_runtime("DEL", "other").unwrap();
    node.call_as_runtime("ADD", "shop").unwrap();
    assert_eq!(node.recorded_calls(), ["DEL bridge", "ADD other"]);
    // What goes comes back.
    fs::remove_file(node.path("bin/ambit-cni")).unwrap();
    fs::remove_file(node.path("net.d/02-ambit-cni.conflist")).unwrap();
    node.wait_until("restored", || {
        node.effective_plugins() == [PLUGIN_NAME] && node.path("bin/ambit-cni").exists()
    })
    .await;
    // A primary that comes before ours.
    node.write_primary_conf("01-net.conflist", "other");
    node.wait_for_plugins(&[PLUGIN_NAME]).await;
    assert!(node.read("00-ambit-cni.conflist").is_some());
    installation.remove(false).await;
    assert_eq!(node.effective_plugins(), ["other"]);
    assert!(node.read("00-ambit-cni.conflist").is_none());
    assert!(node.read("ambit-cni.membership").is_none());
    assert!(!node.path("run/membership.json").exists());
    assert!(
        node.path("bin/ambit-cni").exists(),
        "pods that run end with it"
    );
}

#[tokio::test]
async fn chained_it_is_back_after_each_rewriting_and_leaves_no_trace() {
    let node = TestNode::new();
    node.write_primary_conf("10-net.conflist", "bridge");
    let installation = node.start("chained");
    node.wait_for_plugins(&["bridge", PLUGIN_NAME]).await;
    let text = node.write_primary_conf("10-net.conflist", "other");
    node.wait_for_plugins(&["other", PLUGIN_NAME]).await;
    let earlier = node.write_primary_conf("05-net.conflist", "bridge");
    node.wait_for_plugins(&["bridge", PLUGIN_NAME]).await;
    node.wait_until("out of the other", || {
        node.read("10-net.conflist").as_deref() == Some(text.as_str())
    })
    .await;
    node.wait_until("counted", || node.installs_metric("SUCCESS") >= 3)
        .await;
    installation.remove(true).await;
    assert!(!node.path("bin/ambit-cni").exists());
    assert_eq!(node.read("05-net.conflist").unwrap(), earlier);
    assert_eq!(node.read("10-net.conflist").unwrap(), text);
}

#[tokio::test]
async fn an_agent_that_follows_finds_all_in_order() {
    let node = TestNode::new();
    node.write_primary_conf("10-net.conflist", "bridge");
    drop(node.start("auto"));
    let installation = node.start("auto");
    node.wait_until("ready", || node.metrics.ready.get() == 1)
        .await;
    let own = node.read("02-ambit-cni.conflist");
    let members = r#"{"version":1,"namespaces":{"shop":true}}"#;
    fs::write(node.path("run/membership.tmp"), members).unwrap();
    fs::rename(
        node.path("run/membership.tmp"),
        node.path("run/membership.json"),
    )
    .unwrap();
    node.wait_until("copied", || {
        node.read("ambit-cni.membership").as_deref() == Some(members)
    })
    .await;
    // An upgrade: the plugin is another, the configuration the same.
    drop(installation);
    node.write_program("source", PLUGIN_NAME, "a newer plugin");
    let _installation = node.start("auto");
    node.wait_until("replaced", || {
        fs::read_to_string(node.path("bin/ambit-cni")).unwrap() == "a newer plugin"
    })
    .await;
    assert_eq!(node.read("02-ambit-cni.conflist"), own);
}

#[tokio::test]
async fn failed_installation_is_reported_and_retried() {
    let node = TestNode::new();
    node.write_primary_conf("10-net.conflist", "bridge");
    fs::remove_dir_all(node.path("bin")).unwrap();
    let _installation = node.start("auto");
    node.wait_until("counted", || {
        node.installs_metric("COPY_BINARIES_FAILURE") > 0
    })
    .await;
    assert!(!node.readiness.is_ready());
    assert!(
        node.read("02-ambit-cni.conflist").is_none(),
        "not before the plugin is there"
    );
    fs::create_dir(node.path("bin")).unwrap();
    node.wait_until("healed", || node.readiness.is_ready())
        .await;
}

#[tokio::test]
async fn a_quarrel_is_not_fought_for_ever() {
    let node = TestNode::new();
    let installation = node.start("chained");
    let rewritten = std::cell::Cell::new(0);
    // Somebody who undoes each change at once.
    node.wait_until("given up", || {
        if node.effective_plugins() != ["bridge"] {
            node.write_primary_conf("05-cilium.conflist", "bridge");
            rewritten.set(rewritten.get() + 1);
        }
        !node.readiness.is_ready() && node.installs_metric("SUCCESS") >= 6
    })
    .await;
    assert!(node.installs_metric("SUCCESS") < 10, "{rewritten:?}");
    drop(installation);
}

#[test]
fn the_nodes_directory_is_the_mounted_one_without_its_mount() {
    let desired = |flags: &[&str]| {
        let flags = Flags::try_parse_from([&["test"], flags].concat()).unwrap();
        let desired = flags.install.desired_config(Path::new("/run"), &[]);
        desired.entry.net_dir.to_str().unwrap().to_owned()
    };
    assert_eq!(desired(&[]), "/etc/cni/net.d");
    assert_eq!(desired(&["--cni-net-dir=/host/x/y"]), "/x/y");
    assert_eq!(desired(&["--cni-net-dir=/x"]), "/x");
    assert_eq!(desired(&["--host-cni-net-dir=/z"]), "/z");
}

#[test]
fn istios_settings_choose_the_mode() {
    for (flags, expected) in [
        (&[] as &[&str], mode::InstallMode::Auto),
        (
            &["--chained-cni-plugin=false"],
            mode::InstallMode::Standalone,
        ),
        (&["--owned-cni-config=true"], mode::InstallMode::Owned),
        (
            &["--owned-cni-config=true", "--cni-mode=chained"],
            mode::InstallMode::Chained,
        ),
    ] {
        let flags = Flags::try_parse_from([&["test"], flags].concat()).unwrap();
        assert_eq!(flags.install.mode(), expected);
    }
}
