//! Settings of the installation: flags, or the environment variables of Istio's agent.

use std::path::{Path, PathBuf};

use clap::{ArgAction, Args};

use super::{entry::PluginEntry, mode::InstallMode, plan::DesiredConfig};

/// Installation of the CNI plugin on the node.
#[derive(Clone, Debug, Args)]
pub struct InstallArgs {
    /// Install the CNI plugin on the node and keep it there.
    #[arg(long, env = "INSTALL_CNI", action = ArgAction::Set, default_value_t = false)]
    pub install_cni: bool,
    /// How the plugin is reached.
    #[arg(long, env = "CNI_MODE", value_enum, default_value_t)]
    pub cni_mode: InstallMode,
    /// As Istio's agent has it: false for standalone.
    #[arg(long, env = "CHAINED_CNI_PLUGIN", action = ArgAction::Set, default_value_t = true)]
    pub chained_cni_plugin: bool,
    /// As Istio's agent has it: true for owned.
    #[arg(long, env = "ISTIO_OWNED_CNI_CONFIG", action = ArgAction::Set, default_value_t = false)]
    pub owned_cni_config: bool,
    /// Name of our own configuration; by default one that sorts before the primary's.
    #[arg(long, env = "ISTIO_OWNED_CNI_CONFIG_FILENAME", default_value = "")]
    pub owned_cni_config_filename: String,
    /// Name of the primary CNI's configuration; by default the first usable one.
    #[arg(long, env = "CNI_CONF_NAME", default_value = "")]
    pub cni_conf_name: String,
    /// The node's directory of network configurations, as seen here.
    #[arg(
        long,
        env = "MOUNTED_CNI_NET_DIR",
        default_value = "/host/etc/cni/net.d"
    )]
    pub cni_net_dir: PathBuf,
    /// The same as seen on the node, where the plugin runs; by default without the leading /host.
    #[arg(long, env = "HOST_CNI_NET_DIR")]
    pub host_cni_net_dir: Option<PathBuf>,
    /// The node's directory of plugins, as seen here.
    #[arg(long, env = "MOUNTED_CNI_BIN_DIR", default_value = "/host/opt/cni/bin")]
    pub cni_bin_dir: PathBuf,
    /// Where the plugin is copied from.
    #[arg(long, env = "CNI_SOURCE_DIR", default_value = "/opt/cni/bin")]
    pub cni_source_dir: PathBuf,
    /// Where the plugin remembers, on the node, what it called for each pod.
    #[arg(long, env = "CNI_STATE_DIR", default_value = "/var/lib/cni/ambit")]
    pub cni_state_dir: PathBuf,
    /// Let the group read configurations of ours.
    #[arg(long, env = "CNI_CONF_GROUP_READ", action = ArgAction::Set, default_value_t = false)]
    pub cni_conf_group_read: bool,
    /// Lowest level of lines in the plugin's log: debug, info, warn or error.
    #[arg(long, env = "PLUGIN_LOG_LEVEL", default_value = "info")]
    pub plugin_log_level: String,
    /// How long a mesh pod's start is held while the agent is away, in seconds.
    #[arg(long, env = "CNI_AGENT_WAIT_SECONDS", default_value_t = 90)]
    pub cni_agent_wait_seconds: u64,
    /// Namespace of this agent's pod.
    #[arg(long, env = "POD_NAMESPACE", default_value = "istio-system")]
    pub pod_namespace: String,
    /// The `DaemonSet` this agent's pod belongs to: the plugin is removed once that is gone.
    #[arg(long, env = "DAEMONSET_NAME", default_value = "ambit-agent")]
    pub daemonset_name: String,
}

impl InstallArgs {
    /// Returns the mode of the installation; `auto` defers to Istio's two settings.
    pub fn mode(&self) -> InstallMode {
        match self.cni_mode {
            InstallMode::Auto if !self.chained_cni_plugin => InstallMode::Standalone,
            InstallMode::Auto if self.owned_cni_config => InstallMode::Owned,
            mode => mode,
        }
    }

    /// Returns the desired content of the directory of CNI network configurations.
    pub fn desired_config(&self, run_dir: &Path, exclude_namespaces: &[String]) -> DesiredConfig {
        let named = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        let net_dir = self.host_cni_net_dir.clone().unwrap_or_else(|| {
            let below_host = self.cni_net_dir.strip_prefix("/host");
            below_host.map_or_else(
                |_| self.cni_net_dir.clone(),
                |path| Path::new("/").join(path),
            )
        });
        let excluded = exclude_namespaces.iter().filter_map(|name| named(name));
        DesiredConfig {
            mode: self.mode(),
            primary: named(&self.cni_conf_name),
            own_name: named(&self.owned_cni_config_filename),
            file_mode: if self.cni_conf_group_read {
                0o640
            } else {
                0o600
            },
            entry: PluginEntry {
                log_level: self.plugin_log_level.clone(),
                run_dir: run_dir.to_owned(),
                exclude_namespaces: excluded.collect(),
                pod_namespace: self.pod_namespace.clone(),
                wait_seconds: self.cni_agent_wait_seconds,
                net_dir,
                state_dir: self.cni_state_dir.clone(),
            },
        }
    }
}
