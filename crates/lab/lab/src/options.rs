//! Options of `ambit lab up` that describe a lab.

use std::{collections::BTreeMap, path::PathBuf, str::FromStr};

use serde::{Deserialize, Serialize};

/// Address families of a lab's pods, nodes and services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IpFamily {
    /// Addresses of IPv4 only.
    #[default]
    Ipv4,
    /// Addresses of IPv6 only.
    Ipv6,
    /// Both families, IPv4 first.
    Dual,
}

impl IpFamily {
    /// Whether IPv4 is enabled.
    pub fn has_ipv4(self) -> bool {
        self != Self::Ipv6
    }

    /// Whether IPv6 is enabled.
    pub fn has_ipv6(self) -> bool {
        self != Self::Ipv4
    }
}

impl FromStr for IpFamily {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "ipv4" => Ok(Self::Ipv4),
            "ipv6" => Ok(Self::Ipv6),
            "dual" => Ok(Self::Dual),
            _ => Err(format!("{text:?} is none of ipv4, ipv6, dual")),
        }
    }
}

/// Primary CNI plugin: the one that sets up pods' networks before Ambit's plugin is called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrimaryCni {
    /// The lab's own plugin: the node routes every packet between pods.
    #[default]
    Lab,
    /// The `bridge` plugin of the containernetworking project.
    Bridge,
    /// The `ptp` plugin of the containernetworking project.
    Ptp,
    /// The `macvlan` plugin of the containernetworking project.
    Macvlan,
}

impl FromStr for PrimaryCni {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "lab" => Ok(Self::Lab),
            "bridge" => Ok(Self::Bridge),
            "ptp" => Ok(Self::Ptp),
            "macvlan" => Ok(Self::Macvlan),
            _ => Err(format!("{text:?} is none of lab, bridge, ptp, macvlan")),
        }
    }
}

/// Options of a lab, which do not change while the lab runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// Name of the lab; labs of different names run side by side.
    pub name: String,
    /// Directory of Kubernetes manifests, which the lab follows.
    pub manifests: PathBuf,
    /// Number of nodes, named `node-1` and so on.
    pub nodes: u8,
    /// Address families of nodes and pods.
    pub ip_family: IpFamily,
    /// Path of another implementation's node proxy, by node name.
    pub node_proxies: BTreeMap<String, PathBuf>,
    /// Directory with the mesh's programs, such as `ambit-agent`.
    pub bin_dir: PathBuf,
    /// Path of the `ambit` binary, which also runs as the shim of pods' processes and as the lab's CNI plugin. Programs
    /// in its directory are in the `PATH` of pods.
    pub ambit: PathBuf,
    /// Whether the lab runs the mesh: control plane, agents, node proxies and the chained CNI plugin.
    pub mesh: bool,
    /// Whether the waypoint's program must exist when the mesh starts; otherwise it may be added later.
    pub requires_waypoint: bool,
    /// Primary CNI plugin, which sets up pods' networks.
    pub primary_cni: PrimaryCni,
    /// Directory of the CNI plugins other than Ambit's.
    pub cni_dir: PathBuf,
    /// Whether to create a user namespace even if the caller is root, for whom a lab needs none.
    pub user_namespace: bool,
    /// Additional environment variables of agents, proxies and control plane.
    pub env: BTreeMap<String, String>,
}

/// Maximum number of nodes: their numbers are bytes of addresses.
pub const MAX_NODES: u8 = 99;

impl Options {
    /// Validates the options.
    ///
    /// # Errors
    /// The first invalid option, as text for the user.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=MAX_NODES).contains(&self.nodes) {
            return Err(format!("--nodes {}: give 1 to {MAX_NODES}", self.nodes));
        }
        if let Some(node) = self.node_proxies.keys().find(|node| !self.has_node(node)) {
            return Err(format!(
                "--node-proxy {node}: there is no such node, only node-1 to node-{}",
                self.nodes
            ));
        }
        Ok(())
    }

    fn has_node(&self, name: &str) -> bool {
        (1..=self.nodes).any(|number| name == format!("node-{number}"))
    }
}

#[cfg(test)]
pub(crate) fn for_tests(nodes: u8, ip_family: IpFamily) -> Options {
    Options {
        name: "test".into(),
        manifests: "/manifests".into(),
        nodes,
        ip_family,
        node_proxies: BTreeMap::new(),
        bin_dir: "/bin".into(),
        ambit: "/bin/ambit".into(),
        mesh: true,
        requires_waypoint: true,
        primary_cni: PrimaryCni::Lab,
        cni_dir: "/usr/lib/cni".into(),
        user_namespace: false,
        env: BTreeMap::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_for_a_node_that_does_not_exist_is_refused() {
        let mut options = for_tests(2, IpFamily::Ipv4);
        options
            .node_proxies
            .insert("node-2".into(), "/ztunnel".into());
        assert_eq!(options.check(), Ok(()));
        options
            .node_proxies
            .insert("node-3".into(), "/ztunnel".into());
        assert!(options.check().unwrap_err().contains("node-3"));
    }
}
