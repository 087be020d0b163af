//! Options of a cluster.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::releases::Kubernetes;

/// The addresses that pods and Services get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum IpFamily {
    /// IPv4 addresses only.
    #[default]
    Ipv4,
    /// Both, IPv4 first.
    Dual,
}

/// CNI plugin that sets up pods' networks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PrimaryCni {
    /// A bridge on each node.
    #[default]
    Bridge,
    /// A veth pair and a route for each pod.
    Ptp,
    /// An interface for each pod on the node's own link: pods of a node communicate without passing
    /// its kernel.
    Macvlan,
    /// Flannel: a bridge on each node, VXLAN between them.
    Flannel,
    /// Calico: a veth pair and routes for each pod, `NetworkPolicies` by Felix.
    Calico,
    /// kube-router: a bridge on each node, routes of IPv4 between them by BGP, `NetworkPolicies` by ipsets.
    KubeRouter,
    /// Cilium: a veth pair for each pod, routes between nodes and `NetworkPolicies` by its agent in eBPF.
    Cilium,
}

impl PrimaryCni {
    /// Returns whether the CNI's agents, rather than the cluster, set the routes to the pods of other nodes.
    pub(crate) fn has_own_node_routes(self) -> bool {
        matches!(self, Self::Flannel | Self::KubeRouter | Self::Cilium)
    }
}

/// CNI directories of a distribution of Kubernetes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// Directories of kubeadm, and most others.
    #[default]
    Kubeadm,
    /// Directories of k3s.
    K3s,
    /// Directories of MicroK8s.
    #[value(name = "microk8s")]
    #[serde(rename = "microk8s")]
    MicroK8s,
}

impl Layout {
    /// Returns the directory of CNI configurations in this layout.
    pub fn configurations(self) -> &'static str {
        match self {
            Self::Kubeadm => "/etc/cni/net.d",
            Self::K3s => "/var/lib/rancher/k3s/agent/etc/cni/net.d",
            Self::MicroK8s => "/var/snap/microk8s/current/args/cni-network",
        }
    }

    /// Returns the directory of CNI plugins in this layout.
    pub fn plugins(self) -> &'static str {
        match self {
            Self::Kubeadm => "/opt/cni/bin",
            Self::K3s => "/var/lib/rancher/k3s/data/cni",
            Self::MicroK8s => "/var/snap/microk8s/current/opt/cni/bin",
        }
    }
}

/// Options of a cluster before its start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
pub struct Options {
    /// How many nodes: n1, n2, ...
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=9))]
    pub nodes: u8,
    /// The addresses of pods and Services
    #[arg(long, value_enum, default_value_t)]
    pub ip_family: IpFamily,
    /// Which plugin wires the pods
    #[arg(long, value_enum, default_value_t)]
    pub primary_cni: PrimaryCni,
    /// Distribution of Kubernetes whose directories of CNI the nodes have
    #[arg(long, value_enum, default_value_t)]
    #[serde(default)]
    pub layout: Layout,
    /// Which release of Kubernetes it is
    #[arg(long, value_enum, default_value_t)]
    #[serde(default)]
    pub kubernetes: Kubernetes,
    /// Leave the cluster's DNS out
    #[arg(long)]
    pub no_dns: bool,
    /// Leave the definitions of the Gateway API out
    #[arg(long)]
    #[serde(default)]
    pub no_gateway_api: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            nodes: 2,
            ip_family: IpFamily::default(),
            primary_cni: PrimaryCni::default(),
            layout: Layout::default(),
            kubernetes: Kubernetes::default(),
            no_dns: false,
            no_gateway_api: false,
        }
    }
}

/// Number of one of the clusters that may run side by side: each has its own names, addresses and
/// directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot(u8);

impl Slot {
    /// Slot of the cluster that developers start by hand.
    pub const DEVELOPMENT: Self = Self(0);
    /// Slot of the cluster that the tests of a run share.
    pub const TESTS: Self = Self(1);
    /// Slot of clusters that a single test starts for itself.
    pub const OWN: Self = Self(2);
    /// Slot of the shared cluster of a second test process.
    pub const MORE_TESTS: Self = Self(3);
    /// Slot of the benchmarks' cluster.
    pub const BENCHMARKS: Self = Self(4);

    pub(crate) fn number(self) -> u8 {
        self.0
    }
}

impl std::fmt::Display for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::str::FromStr for Slot {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(number @ 0..=4) => Ok(Self(number)),
            _ => Err(format!("{text} is not a slot from 0 to 4")),
        }
    }
}

/// Directories in which a cluster is stored.
#[derive(Clone, Debug)]
pub struct ClusterPaths {
    /// Directory shared by all clusters, with programs and images that persist between runs.
    pub cache: PathBuf,
    /// Directory of one cluster's state, which is removed with the cluster.
    pub state: PathBuf,
}

impl ClusterPaths {
    /// Returns the directories of a slot's cluster in cargo's target directory.
    pub fn in_target(target: &Path, slot: Slot) -> Self {
        let cache = target.join("cluster");
        let state = match slot {
            Slot::DEVELOPMENT => cache.clone(),
            Slot(number) => cache.join(format!("slot-{number}")),
        };
        Self { cache, state }
    }
}
