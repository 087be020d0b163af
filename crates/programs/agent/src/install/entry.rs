//! Configuration of Ambit's plugin: its entry in a plugin list, and complete network configurations of Ambit.
//!
//! It contains no credential and no kubeconfig: the plugin queries the agent over a socket that only root may open, so
//! nothing in it expires or is secret.

use std::{collections::BTreeMap, path::PathBuf};

use ambit_cni_conf::{MARK, Network, PLUGIN_NAME, json, json::Object};
use serde::Serialize;
use serde_json::{Value, json};

use super::membership_copy;

/// Capabilities that runtimes may pass to plugins as runtime arguments. All are declared, so that a primary CNI that
/// starts to need one gets it before Ambit's file is rewritten.
const CAPABILITIES: [&str; 10] = [
    "aliases",
    "bandwidth",
    "cgroupPath",
    "deviceID",
    "dns",
    "infinibandGUID",
    "io.kubernetes.cri.pod-annotations",
    "ipRanges",
    "ips",
    "mac",
];

/// Capability of port mappings, declared besides [`CAPABILITIES`].
const PORT_MAPPINGS: &str = "portMappings";

/// Settings in the configuration of Ambit's plugin.
#[derive(Clone, Debug)]
pub struct PluginEntry {
    /// Minimum level of the plugin's log lines.
    pub log_level: String,
    /// Run directory of the agent, at the same path in the container and on the node.
    pub run_dir: PathBuf,
    /// Namespaces whose pods never belong to the mesh, so that the plugin need not query the agent about them.
    pub exclude_namespaces: Vec<String>,
    /// Namespace of the agent's own pods, which start without waiting for the agent.
    pub pod_namespace: String,
    /// Time for which a pod waits for an unavailable agent, in seconds.
    pub wait_seconds: u64,
    /// Directory of network configurations, as seen on the node.
    pub net_dir: PathBuf,
    /// Directory on the node in which the plugin records delegated calls.
    pub state_dir: PathBuf,
}

impl PluginEntry {
    /// Returns the plugin's entry for the primary CNI's plugin list.
    pub(super) fn chained_entry(&self) -> Value {
        json!({
            "type": PLUGIN_NAME,
            "plugin_log_level": self.log_level,
            "cni_agent_run_dir": self.run_dir,
            "ambient_enabled": true,
            "exclude_namespaces": self.exclude_namespaces,
            "pod_namespace": self.pod_namespace,
            "agent_wait_seconds": self.wait_seconds,
            "membership": self.net_dir.join(membership_copy::FILE_NAME),
        })
    }

    /// Returns a configuration whose only plugin is Ambit's, which calls the plugins of `primary`. It has the same
    /// network name, under which runtimes and plugins store a pod's state before and after the installation; and the
    /// same versions, so that a runtime uses only commands that the primary's plugins support.
    pub(super) fn owned_config(
        &self,
        file: &str,
        text: &str,
        primary: &Network,
        pinned: Option<&str>,
    ) -> Result<String, serde_json::Error> {
        let mut entry = self.chained_entry();
        let supported = primary.capabilities();
        let supported = supported.iter().map(String::as_str);
        let capabilities: BTreeMap<_, _> = CAPABILITIES
            .into_iter()
            .chain([PORT_MAPPINGS])
            .chain(supported)
            .map(|name| (name, true))
            .collect();
        if let Some(entry) = entry.as_object_mut() {
            entry.insert("capabilities".to_owned(), json!(capabilities));
            let mut delegate = json!({ "netDir": self.net_dir, "stateDir": self.state_dir });
            if let (Some(delegate), Some(pinned)) = (delegate.as_object_mut(), pinned) {
                delegate.insert("primary".to_owned(), pinned.into());
            }
            entry.insert("delegate".to_owned(), delegate);
        }
        wrap_plugins(text, file, "calls", &[json::serialize_raw(&entry)?])
    }

    /// Converts a primary configuration of the old form (a single plugin) to a list of that plugin and Ambit's.
    pub(super) fn to_plugin_list(
        &self,
        file: &str,
        text: &str,
    ) -> Result<String, serde_json::Error> {
        let single: &serde_json::value::RawValue = serde_json::from_str(text)?;
        wrap_plugins(
            text,
            file,
            "copies",
            &[
                single.to_owned(),
                json::serialize_raw(&self.chained_entry())?,
            ],
        )
    }

    /// Returns a network configuration whose only plugin is Ambit's, for the standalone mode.
    pub(super) fn standalone_config(&self) -> Result<String, serde_json::Error> {
        let mut entry = self.chained_entry();
        if let Some(entry) = entry.as_object_mut() {
            entry.insert("name".to_owned(), PLUGIN_NAME.into());
            entry.insert("cniVersion".to_owned(), "0.3.1".into());
        }
        to_pretty_json(&entry)
    }
}

/// Returns a list of `plugins` with all other fields of the network configuration `text`, such as its name.
fn wrap_plugins(
    text: &str,
    file: &str,
    relation: &str,
    plugins: &[Box<serde_json::value::RawValue>],
) -> Result<String, serde_json::Error> {
    let primary = Object::parse(text)?;
    let retained = [
        "cniVersion",
        "cniVersions",
        "name",
        "disableCheck",
        "disableGC",
    ];
    let mut members: Vec<_> = retained
        .into_iter()
        .filter_map(|key| Some((key, primary.get(key)?.to_owned())))
        .collect();
    members.push((MARK, json::serialize_raw(&json!({ relation: file }))?));
    members.push(("plugins", json::serialize_raw(plugins)?));
    let whole: Value = serde_json::from_str(&json::with_members("{}", &members)?)?;
    to_pretty_json(&whole)
}

fn to_pretty_json(value: &impl Serialize) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}
