//! Settings of the agent, as flags or the environment variables of Istio's agent.

use std::{io, net::SocketAddr, path::PathBuf, time::Duration};

use ambit_bpf::Pins;
use ambit_k8s_api::enablement::{Enablement, EnablementSelector, SelectorError};
use ambit_netplan::{Backend, HostSpec, RedirectionSpec};
use ambit_sys::{netns::Netns, procfs::Attribution};
use clap::{ArgAction, Parser, ValueEnum};

use crate::{
    actions::{KernelActions, NodePrograms, bpf::default_pins},
    enrolment::Settings,
    install::options::InstallArgs,
};

/// Environment variable of a pod's processes that holds the pod's UID, for `--discover environ`.
pub const POD_UID_VARIABLE: &str = "AMBIT_POD_UID";

/// The node agent of the Ambit mesh: captures the node's mesh pods and serves its node proxies.
#[derive(Clone, Debug, Parser)]
#[command(name = "ambit-agent", version)]
pub struct Args {
    /// The node this agent runs on.
    #[arg(long, alias = "node-name", env = "NODE_NAME")]
    pub node: String,
    /// Read pods and namespaces from the API server, and write the pods' status there: the default
    /// without --manifests.
    #[arg(long, conflicts_with_all = ["manifests", "status_dir"])]
    pub kubernetes: bool,
    /// How to reach the API server; otherwise KUBECONFIG, ~/.kube/config or the pod's service account.
    #[arg(long, value_name = "FILE", conflicts_with = "manifests")]
    pub kubeconfig: Option<PathBuf>,
    /// Directory of manifests to read pods and namespaces from instead; may be repeated, later ones
    /// are laid over earlier ones.
    #[arg(long, value_name = "DIR")]
    pub manifests: Vec<PathBuf>,
    /// Where the pods' status is written, as manifests to lay over the pods' own.
    #[arg(long, value_name = "DIR", requires = "manifests")]
    pub status_dir: Option<PathBuf>,
    /// Holds the socket for the CNI plugin.
    #[arg(long, env = "CNI_AGENT_RUN_DIR", default_value = "/var/run/istio-cni")]
    pub run_dir: PathBuf,
    /// The socket that node proxies connect to.
    #[arg(
        long,
        env = "ZTUNNEL_UDS_ADDRESS",
        default_value = "/var/run/ztunnel/ztunnel.sock"
    )]
    pub zds_socket: PathBuf,
    /// Where the node's processes are seen; by default /host/proc if that is there, else /proc.
    #[arg(long, env = "HOST_PROC")]
    pub host_proc: Option<PathBuf>,
    /// Put before the paths of network namespaces that the plugin names; by default /host if the
    /// node's processes are seen below that.
    #[arg(long, env = "HOST_PREFIX")]
    pub host_prefix: Option<PathBuf>,
    /// The node's network namespace, if it is not that of this process.
    #[arg(long, env = "HOST_NETNS")]
    pub host_netns: Option<PathBuf>,
    /// Take /proc/1's network namespace for the node's.
    #[arg(long, env = "ALLOW_SWITCH_TO_HOST_NS", action = ArgAction::Set, default_value_t = false)]
    pub allow_switch_to_host_ns: bool,
    /// How the processes of running pods are recognised.
    #[arg(long, env = "DISCOVER", value_enum, default_value_t = Discover::Cgroup)]
    pub discover: Discover,
    /// Where metrics are served; empty for nowhere.
    #[arg(long, default_value = "0.0.0.0:15014")]
    pub listen_metrics: String,
    /// Where /healthz and /readyz are served; empty for nowhere.
    #[arg(long, default_value = "0.0.0.0:8000")]
    pub listen_health: String,
    /// Namespaces kept out of the mesh, whatever their labels.
    #[arg(long, env = "EXCLUDE_NAMESPACES", value_delimiter = ',')]
    pub exclude_namespaces: Vec<String>,
    /// Where node proxies run; they are never captured.
    #[arg(long, env = "SYSTEM_NAMESPACE", default_value = "istio-system")]
    pub system_namespace: String,
    /// Pods that belong to the mesh: a YAML list of {podSelector, namespaceSelector}.
    #[arg(long, env = "AMBIENT_ENABLEMENT_SELECTOR", default_value = "")]
    pub enablement_selector: String,
    /// Send pods' DNS questions to the node proxy, which must then answer them
    /// (ISTIO_META_DNS_CAPTURE, its default).
    #[arg(long, env = "AMBIENT_DNS_CAPTURE", action = ArgAction::Set, default_value_t = true)]
    pub dns_capture: bool,
    /// Whether to capture IPv6.
    #[arg(long, env = "AMBIENT_IPV6", action = ArgAction::Set, default_value_t = true)]
    pub ipv6: bool,
    /// Exempt kubelet's probes, with rules in the node's namespace. Without them pods exempt no connection.
    #[arg(long, env = "HOST_PROBE_RULE", action = ArgAction::Set, default_value_t = true)]
    pub host_probe_rule: bool,
    /// Which connections of the node's processes to captured pods count as kubelet's probes, and so pass
    /// STRICT, policies and waypoints.
    #[arg(long, env = "PROBE_EXEMPTION", value_enum, default_value_t = ProbeExemption::Kubelet)]
    pub probe_exemption: ProbeExemption,
    /// The user that kubelet runs as.
    #[arg(long, env = "KUBELET_UID", default_value_t = 0)]
    pub kubelet_uid: u32,
    /// Path of kubelet's cgroup (version 2), such as system.slice: only processes in it are kubelet. Empty: any.
    #[arg(long, env = "KUBELET_CGROUP", default_value = "")]
    pub kubelet_cgroup: String,
    /// Source address of IPv4 probes.
    #[arg(long, env = "HOST_PROBE_SNAT_IP", default_value_t = ambit_netplan::probes::V4)]
    pub probe_v4: std::net::Ipv4Addr,
    /// Source address of IPv6 probes.
    #[arg(long, env = "HOST_PROBE_SNAT_IPV6", default_value_t = ambit_netplan::probes::V6)]
    pub probe_v6: std::net::Ipv6Addr,
    /// Backend of the redirection: auto, bpf, nftables, iptables-nft or iptables-legacy.
    #[arg(long, env = "REDIRECTION_BACKEND", default_value_t = Backend::Auto)]
    pub backend: Backend,
    /// Directory of pods' BPF programs, on the node's bpffs; by default /sys/fs/bpf/ambit on the node.
    #[arg(long, env = "AMBIT_BPF_DIR")]
    pub bpf_dir: Option<PathBuf>,
    /// Seconds between two comparisons of everything with the kernel.
    #[arg(long, env = "RECONCILE_SECONDS", default_value_t = 30)]
    pub reconcile_seconds: u64,
    /// Take the node's probe rule and the CNI plugin away when ending, whatever becomes of the agent.
    #[arg(long, env = "AMBIENT_DISABLE_SAFE_UPGRADE", action = ArgAction::Set, default_value_t = false)]
    pub clean_up_on_exit: bool,
    /// Run the agent itself, without the process that starts another when it dies.
    #[arg(long, conflicts_with = "worker")]
    pub no_supervisor: bool,
    /// Run the agent for a supervisor, to which standard input is the line.
    #[arg(long, hide = true)]
    pub worker: bool,
    /// Installation of the CNI plugin.
    #[command(flatten)]
    pub install: InstallArgs,
}

/// How the processes of running pods are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Discover {
    /// By the pod's uid in their cgroup.
    Cgroup,
    /// By the pod's uid in their environment variable `AMBIT_POD_UID`.
    Environ,
}

/// Which connections of the node's processes count as kubelet's probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProbeExemption {
    /// Connections of kubelet's user to the ports that a pod's probes and lifecycle hooks name.
    Kubelet,
    /// Connections of every process in the node's network namespace, to every port.
    Node,
}

/// Error of the agent's settings.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The enablement selector is invalid.
    #[error(transparent)]
    Selector(#[from] SelectorError),
    /// A listening address cannot be parsed.
    #[error("{value:?} is not an address to serve {purpose} at, such as 0.0.0.0:15014")]
    Address {
        /// Name of the server that would listen at the address, for the error message.
        purpose: &'static str,
        /// Text that is no valid address.
        value: String,
    },
    /// The node's network namespace cannot be opened.
    #[error("cannot open the node's network namespace {path}")]
    HostNetns {
        /// Path of the namespace file.
        path: PathBuf,
        /// Cause of the error.
        #[source]
        source: io::Error,
    },
}

impl Args {
    /// Returns the settings of enrolment, which all pods share.
    ///
    /// # Errors
    /// When the enablement selector is wrong.
    pub fn settings(&self) -> Result<Settings, ConfigError> {
        Ok(Settings {
            enablement: Enablement::new(
                EnablementSelector::parse_list(&self.enablement_selector)?,
                self.exclude_namespaces.iter().cloned(),
                self.system_namespace.clone(),
            )?,
            redirection: RedirectionSpec {
                ipv6: self.ipv6,
                dns_capture: self.dns_capture,
                probe_v4: self.probe_v4,
                probe_v6: self.probe_v6,
                backend: self.backend,
                ..RedirectionSpec::default()
            },
            exempt_probe_ports_only: self.probe_exemption == ProbeExemption::Kubelet,
        })
    }

    /// Creates the operations on the node and its pods.
    ///
    /// # Errors
    /// When the node's namespace cannot be opened.
    pub fn kernel_actions(&self) -> Result<KernelActions, ConfigError> {
        let (proc, netns_prefix) = self.node_paths();
        let path = match &self.host_netns {
            Some(path) => path.clone(),
            None if self.allow_switch_to_host_ns => proc.join("1/ns/net"),
            None => "/proc/self/ns/net".into(),
        };
        let node = Netns::open(&path).map_err(|source| ConfigError::HostNetns { path, source })?;
        Ok(KernelActions {
            programs: NodePrograms::at(match &self.bpf_dir {
                Some(root) => Pins::at(root),
                None => default_pins(&proc),
            }),
            procfs: proc,
            attribution: match self.discover {
                Discover::Cgroup => Attribution::Cgroup,
                Discover::Environ => Attribution::Environ(POD_UID_VARIABLE.to_owned()),
            },
            netns_prefix,
            node_netns: node,
            kubelet_cgroup: (self.probe_exemption == ProbeExemption::Kubelet)
                .then(|| self.kubelet_cgroup.clone())
                .filter(|cgroup| !cgroup.is_empty()),
            host: self.host_probe_rule.then(|| HostSpec {
                ipv6: self.ipv6,
                kubelet_uid: (self.probe_exemption == ProbeExemption::Kubelet)
                    .then_some(self.kubelet_uid),
                probe_v4: self.probe_v4,
                probe_v6: self.probe_v6,
                backend: self.backend,
                ..HostSpec::default()
            }),
        })
    }

    /// Returns the paths of the node's procfs, and of the node's file system as the prefix of namespace paths.
    fn node_paths(&self) -> (PathBuf, PathBuf) {
        let mounted = PathBuf::from("/host/proc");
        let proc = self.host_proc.clone().unwrap_or_else(|| {
            if mounted.join("1").exists() {
                mounted.clone()
            } else {
                "/proc".into()
            }
        });
        let prefix = self.host_prefix.clone().unwrap_or_else(|| {
            let below_host = proc.starts_with("/host");
            if below_host { "/host" } else { "/" }.into()
        });
        (proc, prefix)
    }

    /// Returns the directory in which container runtimes bind pods' network namespaces, as seen by the agent.
    pub fn netns_dir(&self) -> PathBuf {
        self.node_paths().1.join("var/run/netns")
    }

    /// Returns the interval at which all redirection is compared with the kernel; at least one second.
    pub fn reconcile_interval(&self) -> Duration {
        Duration::from_secs(self.reconcile_seconds.max(1))
    }

    /// Returns the listening addresses of the metrics server and the health server; `None` for a disabled server.
    ///
    /// # Errors
    /// When one is neither empty nor an address. `:8000` means every address.
    pub fn listen_addresses(&self) -> Result<[Option<SocketAddr>; 2], ConfigError> {
        Ok([
            parse_address("metrics", &self.listen_metrics)?,
            parse_address("health", &self.listen_health)?,
        ])
    }
}

fn parse_address(purpose: &'static str, text: &str) -> Result<Option<SocketAddr>, ConfigError> {
    if text.is_empty() {
        return Ok(None);
    }
    let full = if text.starts_with(':') {
        format!("0.0.0.0{text}")
    } else {
        text.to_owned()
    };
    let bad = |_| ConfigError::Address {
        purpose,
        value: text.to_owned(),
    };
    full.parse().map(Some).map_err(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(more: &[&str]) -> Args {
        let base = ["ambit-agent", "--node", "n1", "--manifests", "/x"];
        Args::try_parse_from(base.iter().chain(more)).unwrap()
    }

    #[test]
    fn the_usual_settings_are_those_of_the_contract() {
        let args = args(&[]);
        assert_eq!(args.run_dir, PathBuf::from("/var/run/istio-cni"));
        assert_eq!(
            args.zds_socket,
            PathBuf::from("/var/run/ztunnel/ztunnel.sock")
        );
        let [metrics, health] = args.listen_addresses().unwrap();
        assert_eq!(metrics, Some("0.0.0.0:15014".parse().unwrap()));
        assert_eq!(health, Some("0.0.0.0:8000".parse().unwrap()));
        assert!(args.settings().is_ok());
    }

    #[test]
    fn the_source_is_the_api_server_unless_manifests_are_given() {
        let parse = |args: &[&str]| {
            let base = ["ambit-agent", "--node-name", "n1"];
            Args::try_parse_from(base.iter().chain(args))
        };
        assert!(parse(&[]).unwrap().manifests.is_empty());
        assert!(parse(&["--kubernetes", "--kubeconfig", "/k"]).is_ok());
        assert!(parse(&["--kubernetes", "--manifests", "/x"]).is_err());
        assert!(parse(&["--status-dir", "/x"]).is_err());
    }

    #[test]
    fn the_nodes_paths_go_together() {
        let paths = |more: &[&str]| {
            let (proc, prefix) = args(more).node_paths();
            (proc.display().to_string(), prefix.display().to_string())
        };
        let expected = |proc: &str, prefix: &str| (proc.to_owned(), prefix.to_owned());
        assert_eq!(
            paths(&["--host-proc", "/host/proc"]),
            expected("/host/proc", "/host")
        );
        assert_eq!(paths(&["--host-proc", "/proc"]), expected("/proc", "/"));
        assert_eq!(
            paths(&["--host-proc", "/proc", "--host-prefix", "/n"]),
            expected("/proc", "/n")
        );
    }

    #[test]
    fn selectors_are_read_as_yaml() {
        let yaml = "- podSelector:\n    matchLabels: {a: b}\n- namespaceSelector: {}\n";
        assert!(
            args(&[&format!("--enablement-selector={yaml}")])
                .settings()
                .is_ok()
        );
        for wrong in [
            "a: b",
            "- podSelctor: {}",
            "- [",
            "- podSelector: {matchExpressions: [{key: a, operator: Gt}]}",
        ] {
            assert!(
                args(&[&format!("--enablement-selector={wrong}")])
                    .settings()
                    .is_err(),
                "{wrong}"
            );
        }
    }

    #[test]
    fn addresses_may_be_left_out_or_wrong() {
        assert_eq!(
            args(&["--listen-metrics", ""]).listen_addresses().unwrap()[0],
            None
        );
        let any = args(&["--listen-health", ":9"]).listen_addresses().unwrap()[1];
        assert_eq!(any, Some("0.0.0.0:9".parse().unwrap()));
        assert!(
            args(&["--listen-health", "nowhere"])
                .listen_addresses()
                .is_err()
        );
    }

    #[test]
    fn excluded_namespaces_are_trimmed() {
        let settings = args(&["--exclude-namespaces", " kube-system ,,other"])
            .settings()
            .unwrap();
        assert!(settings.enablement.excludes_namespace("kube-system"));
        assert!(settings.enablement.excludes_namespace("other"));
        assert!(!settings.enablement.excludes_namespace(""));
    }
}
