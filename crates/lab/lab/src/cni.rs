//! Runtime side of CNI: executes a list of plugins for a pod's network namespace, as a container runtime does.

use std::{
    ffi::OsString,
    io,
    net::IpAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use ipnet::IpNet;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::{
    Options, PrimaryCni, addresses::AddressPlan, cluster::PodPlan, cni_plugin::PLUGIN_NAME,
    fabric::Node,
};

/// Timeout of one call of a plugin, the same as in common runtimes.
const PLUGIN_TIMEOUT: Duration = Duration::from_secs(120);

/// Name of a pod's network interface (`CNI_IFNAME`).
const INTERFACE: &str = "eth0";

/// Reason why a pod's network could not be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CniError {
    #[error("cannot run the plugin {plugin}: {source}")]
    Run {
        plugin: String,
        #[source]
        source: io::Error,
    },
    #[error("the plugin {0} took too long")]
    Timeout(String),
    #[error("the plugin {plugin} failed: {message}")]
    Failed { plugin: String, message: String },
    #[error("the plugins gave the pod no address")]
    NoAddress,
}

/// Configuration list of CNI plugins for one node.
#[derive(Debug)]
pub(crate) struct PluginList {
    version: String,
    name: String,
    plugins: Vec<Value>,
    path: OsString,
}

/// One attempt to set up the network of a pod.
#[derive(Clone, Debug)]
pub(crate) struct Sandbox {
    /// Container id for the plugins (`CNI_CONTAINERID`), unique for each attempt.
    pub(crate) id: String,
    /// Path of the pod's network namespace (`CNI_NETNS`).
    pub(crate) netns: String,
}

/// Returns the run directory of a node's agent, where its CNI socket is.
pub(crate) fn agent_run_dir(node: &Node) -> PathBuf {
    node.dir.join("cni")
}

impl PluginList {
    /// Builds the configuration list of a node: the primary plugin, followed by Ambit's if the lab has a mesh.
    pub(crate) fn new(node: &Node, plan: AddressPlan, options: &Options, links: &Path) -> Self {
        let mut plugins = vec![primary_plugin_config(node, plan, options.primary_cni)];
        if options.mesh {
            plugins.push(json!({
                "type": "ambit-cni",
                "name": "istio-cni",
                "cni_agent_run_dir": agent_run_dir(node),
                "ambient_enabled": true,
                "exclude_namespaces": ["kube-system"],
                "pod_namespace": "istio-system",
                // Short, so that a pod shows why it waits; the runtime retries for ever.
                "agent_wait_seconds": 20,
            }));
        }
        let mut path = links.as_os_str().to_owned();
        for dir in [&options.bin_dir, &options.cni_dir] {
            path.push(":");
            path.push(dir);
        }
        Self {
            version: "1.0.0".into(),
            name: "ambit-lab".into(),
            plugins,
            path,
        }
    }

    /// Returns the list in the format of a CNI configuration file, for users to read.
    pub(crate) fn to_json(&self) -> Value {
        json!({"cniVersion": self.version, "name": self.name, "plugins": self.plugins})
    }

    /// Calls all plugins with `ADD`, and returns the pod's addresses.
    pub(crate) async fn add(
        &self,
        node: &Node,
        pod: &PodPlan,
        sandbox: &Sandbox,
    ) -> Result<Vec<IpAddr>, CniError> {
        let mut result = None;
        for plugin in &self.plugins {
            result = self.call("ADD", plugin, result, node, pod, sandbox).await?;
        }
        let ips = result
            .as_ref()
            .and_then(|result| result.get("ips"))
            .and_then(Value::as_array);
        let address = |ip: &Value| {
            ip.get("address")?
                .as_str()?
                .parse::<IpNet>()
                .ok()
                .map(|net| net.addr())
        };
        let ips: Vec<_> = ips.into_iter().flatten().filter_map(address).collect();
        if ips.is_empty() {
            Err(CniError::NoAddress)
        } else {
            Ok(ips)
        }
    }

    /// Calls all plugins with `DEL` in reverse order, even after one has failed.
    pub(crate) async fn delete(&self, node: &Node, pod: &PodPlan, sandbox: &Sandbox) {
        for plugin in self.plugins.iter().rev() {
            if let Err(error) = self.call("DEL", plugin, None, node, pod, sandbox).await {
                tracing::warn!(pod = pod.full_name(), %error, "cannot take a pod's network down");
            }
        }
    }

    async fn call(
        &self,
        verb: &str,
        plugin: &Value,
        previous: Option<Value>,
        node: &Node,
        pod: &PodPlan,
        sandbox: &Sandbox,
    ) -> Result<Option<Value>, CniError> {
        let kind = plugin
            .get("type")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let failed = |source| CniError::Run {
            plugin: kind.clone(),
            source,
        };
        let mut config = plugin.clone();
        if let Some(config) = config.as_object_mut() {
            config.insert("cniVersion".into(), self.version.clone().into());
            config.insert("name".into(), self.name.clone().into());
            if let Some(previous) = previous {
                config.insert("prevResult".into(), previous);
            }
        }
        let program = self.find_plugin(&kind).ok_or_else(|| {
            failed(io::Error::new(
                io::ErrorKind::NotFound,
                "it is in none of the directories",
            ))
        })?;
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", &sandbox.id)
            .env("CNI_NETNS", &sandbox.netns)
            .env("CNI_IFNAME", INTERFACE)
            .env("CNI_PATH", &self.path)
            .env(
                "CNI_ARGS",
                format!(
                    "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={};\
                     K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID={}",
                    pod.namespace(),
                    pod.name(),
                    sandbox.id,
                    pod.uid
                ),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut command = tokio::process::Command::from(command);
        command.kill_on_drop(true);
        let spawned = node
            .host
            .run(|| command.spawn())
            .and_then(|spawned| spawned);
        let mut child = spawned.map_err(failed)?;
        let run = async {
            if let Some(mut stdin) = child.stdin.take() {
                stdin.write_all(config.to_string().as_bytes()).await?;
            }
            child.wait_with_output().await
        };
        let output = tokio::time::timeout(PLUGIN_TIMEOUT, run)
            .await
            .map_err(|_| CniError::Timeout(kind.clone()))?
            .map_err(failed)?;
        let stdout: Option<Value> = serde_json::from_slice(&output.stdout).ok();
        if output.status.success() {
            return Ok(stdout);
        }
        let text = |key: &str| {
            let stdout = stdout.as_ref()?;
            stdout
                .get(key)?
                .as_str()
                .filter(|text| !text.is_empty())
                .map(ToOwned::to_owned)
        };
        let message = match (text("msg"), text("details")) {
            (Some(message), Some(details)) => format!("{message}: {details}"),
            (Some(message), None) => message,
            _ => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        };
        Err(CniError::Failed {
            plugin: kind,
            message,
        })
    }

    fn find_plugin(&self, kind: &str) -> Option<PathBuf> {
        std::env::split_paths(&self.path)
            .map(|dir| dir.join(kind))
            .find(|path| path.is_file())
    }
}

fn primary_plugin_config(node: &Node, plan: AddressPlan, kind: PrimaryCni) -> Value {
    let gateways = plan.pod_gateways(node.number);
    let ranges: Vec<_> = plan
        .pod_networks(node.number)
        .iter()
        .map(|net| json!([{"subnet": net.to_string()}]))
        .collect();
    let routes: Vec<_> = gateways
        .iter()
        .map(|gateway| json!({"dst": crate::addresses::default_route(gateway.addr())}))
        .collect();
    let ipam = json!({
        "type": "host-local",
        "dataDir": node.dir.join("ipam"),
        "ranges": ranges,
        "routes": routes,
    });
    match kind {
        PrimaryCni::Lab => json!({
            "type": PLUGIN_NAME,
            "bridge": "cni0",
            "gateways": gateways,
            "dataDir": node.dir.join("ipam"),
        }),
        PrimaryCni::Bridge => json!({
            "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipam": ipam,
        }),
        PrimaryCni::Ptp => json!({"type": "ptp", "ipMasq": false, "ipam": ipam}),
        PrimaryCni::Macvlan => json!({
            "type": "macvlan", "master": crate::fabric::MACVLAN_MASTER, "mode": "bridge", "ipam": ipam,
        }),
    }
}
