//! Addresses, network namespaces and links of a cluster. The control plane's network namespace has a switch, to which
//! every node and this machine have one link.

use std::{
    fmt::Write,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{
    command::{self, ToolCommand},
    options::{IpFamily, Options, PrimaryCni, Slot},
};

/// Network namespace of the control plane, without the cluster's prefix. Those of the nodes are called `n1`, `n2`, and
/// so on.
const CONTROL_PLANE_NAMESPACE: &str = "cp";

/// Names and addresses of a cluster, all derived from the slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Network {
    slot: u8,
    is_dual_stack: bool,
    primary_cni: PrimaryCni,
}

impl Network {
    pub(crate) fn new(slot: Slot, options: &Options) -> Self {
        Self {
            slot: slot.number(),
            is_dual_stack: options.ip_family == IpFamily::Dual,
            primary_cni: options.primary_cni,
        }
    }

    /// Returns the prefix of the names of all namespaces and links.
    pub(crate) fn prefix(self) -> String {
        match self.slot {
            0 => "kube".to_owned(),
            number => format!("kube{number}"),
        }
    }

    /// Returns the name of the network namespace of a node or of the control plane.
    pub(crate) fn namespace_name(self, who: &str) -> String {
        format!("{}-{who}", self.prefix())
    }

    /// Returns the path of the network namespace of a node or of the control plane.
    pub(crate) fn namespace_path(self, who: &str) -> PathBuf {
        PathBuf::from("/run/netns").join(self.namespace_name(who))
    }

    /// Returns a command that runs a program in the control plane's network namespace.
    pub(crate) fn in_control_plane(self, program: impl AsRef<std::ffi::OsStr>) -> ToolCommand {
        ToolCommand::new("nsenter")
            .arg(format!(
                "--net={}",
                self.namespace_path(CONTROL_PLANE_NAMESPACE).display()
            ))
            .arg(program)
    }

    pub(crate) fn api_server_address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 250 + self.slot, 0, 1)
    }

    fn host_machine_address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 250 + self.slot, 0, 254)
    }

    pub(crate) fn node_address(self, number: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 250 + self.slot, 0, 10 + number)
    }

    fn node_v6(self, host: u8) -> String {
        format!("fd00:{}:250::{host}", self.slot)
    }

    /// Returns the addresses of a node, for the kubelet's `--node-ip`.
    pub(crate) fn node_addresses(self, number: u8) -> String {
        let v4 = self.node_address(number).to_string();
        self.by_ip_family(v4, self.node_v6(10 + number)).join(",")
    }

    /// Returns the pod CIDRs of a node.
    pub(crate) fn node_pod_cidrs(self, number: u8) -> Vec<String> {
        let v4 = format!("10.{}.{number}.0/24", 244 + self.slot);
        self.by_ip_family(v4, format!("fd00:{}:244:{number}::/64", self.slot))
    }

    /// Returns a node's addresses in its pod CIDRs: the first ones, which CNI plugins use as the gateway.
    fn pod_gateways(self, number: u8) -> Vec<String> {
        let v4 = format!("10.{}.{number}.1/24", 244 + self.slot);
        self.by_ip_family(v4, format!("fd00:{}:244:{number}::1/64", self.slot))
    }

    /// Returns the pod CIDRs of the whole cluster.
    pub(crate) fn cluster_pod_cidrs(self) -> Vec<String> {
        let v4 = format!("10.{}.0.0/16", 244 + self.slot);
        self.by_ip_family(v4, format!("fd00:{}:244::/48", self.slot))
    }

    fn service_cidrs(self) -> Vec<String> {
        let v4 = format!("10.{}.0.0/16", 96 + self.slot);
        self.by_ip_family(v4, format!("fd00:{}:96::/112", self.slot))
    }

    /// Returns the CIDRs of Services' cluster IPs.
    pub(crate) fn service_cidr_list(self) -> String {
        self.service_cidrs().join(",")
    }

    /// Returns the cluster IP of the API server's Service.
    pub(crate) fn api_service_address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 96 + self.slot, 0, 1)
    }

    /// Returns the cluster IP of the DNS Service.
    pub(crate) fn dns_service_address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 96 + self.slot, 0, 10)
    }

    /// Returns whether pods and Services have IPv4 and IPv6 addresses.
    pub(crate) fn is_dual(self) -> bool {
        self.is_dual_stack
    }

    fn by_ip_family(self, v4: String, v6: String) -> Vec<String> {
        if self.is_dual_stack {
            vec![v4, v6]
        } else {
            vec![v4]
        }
    }

    fn machine_link_name(self) -> String {
        format!("{}-host", self.prefix())
    }

    /// Creates all network namespaces and links of a cluster with this number of nodes.
    pub(crate) fn make(self, nodes: u8) -> Result<()> {
        let switch = self.namespace_name(CONTROL_PLANE_NAMESPACE);
        let api = self.api_server_address();
        let link = self.machine_link_name();
        let mut root = format!("netns add {switch}\n");
        let mut inside = format!(
            "link set lo up\nlink add kbr0 type bridge\n{}link set kbr0 up\n",
            self.address_commands("kbr0", api, 1)
        );
        for number in 1..=nodes {
            let node = self.namespace_name(&format!("n{number}"));
            writeln!(root, "netns add {node}")?;
            writeln!(
                root,
                "link add eth0 netns {node} type veth peer name kn{number} netns {switch}"
            )?;
            writeln!(inside, "link set kn{number} master kbr0 up")?;
            self.add_pod_routes(&mut inside, number)?;
        }
        writeln!(
            root,
            "link add {link} type veth peer name khost netns {switch}\n{}link set {link} up",
            self.address_commands(&link, self.host_machine_address(), 254)
        )?;
        writeln!(inside, "link set khost master kbr0 up")?;
        for number in 1..=nodes {
            self.add_pod_routes(&mut root, number)?;
        }
        for range in self.service_cidrs() {
            writeln!(root, "route add {range} via {}", self.route_via(&range, 1))?;
        }
        command::ip_batch(None, &root)?;
        command::ip_batch(Some(&switch), &inside)?;
        self.set_sysctls(
            CONTROL_PLANE_NAMESPACE,
            &[("net/bridge/bridge-nf-call-iptables", "0")],
        )?;
        for number in 1..=nodes {
            self.make_node(number, nodes)?;
        }
        Ok(())
    }

    fn make_node(self, number: u8, nodes: u8) -> Result<()> {
        let mut batch = format!(
            "link set lo up\n{}link set eth0 up\nroute add default via {}\n",
            self.address_commands("eth0", self.node_address(number), 10 + number),
            self.api_server_address(),
        );
        if self.is_dual_stack {
            writeln!(batch, "route add default via {}", self.node_v6(1))?;
        }
        if self.primary_cni == PrimaryCni::Macvlan {
            self.add_node_macvlan(&mut batch, number)?;
        }
        if !self.primary_cni.has_own_node_routes() {
            for other in (1..=nodes).filter(|other| *other != number) {
                self.add_pod_routes(&mut batch, other)?;
            }
        }
        command::ip_batch(Some(&self.namespace_name(&format!("n{number}"))), &batch)?;
        self.set_sysctls(&format!("n{number}"), &[])
    }

    /// Adds the commands for a macvlan interface of the node itself. Without it, the node could not reach its pods'
    /// macvlan interfaces, which share their parent with it.
    fn add_node_macvlan(self, batch: &mut String, number: u8) -> Result<()> {
        writeln!(batch, "link add mac0 link eth0 type macvlan mode bridge")?;
        for gateway in self.pod_gateways(number) {
            writeln!(batch, "addr add {gateway} dev mac0")?;
        }
        Ok(writeln!(batch, "link set mac0 up")?)
    }

    /// Returns the `ip` commands that set an interface's addresses in the nodes' network.
    fn address_commands(self, link: &str, v4: Ipv4Addr, host: u8) -> String {
        let mut batch = format!("addr add {v4}/24 dev {link}\n");
        if self.is_dual_stack {
            // No duplicate address detection: no other host can have the address.
            batch += &format!("addr add {}/64 dev {link} nodad\n", self.node_v6(host));
        }
        batch
    }

    /// Adds the `ip` commands for the routes to a node's pods.
    fn add_pod_routes(self, batch: &mut String, number: u8) -> Result<()> {
        for range in self.node_pod_cidrs(number) {
            writeln!(
                batch,
                "route add {range} via {}",
                self.route_via(&range, number)
            )?;
        }
        Ok(())
    }

    fn route_via(self, range: &str, number: u8) -> String {
        if range.contains(':') {
            self.node_v6(10 + number)
        } else {
            self.node_address(number).to_string()
        }
    }

    fn set_sysctls(self, who: &str, more: &[(&str, &str)]) -> Result<()> {
        let forward = [
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv6/conf/all/forwarding", "1"),
        ];
        let mut script = String::new();
        for (key, value) in forward.iter().chain(more) {
            // Not every kernel has bridge filtering or IPv6.
            writeln!(
                script,
                "[ ! -e /proc/sys/{key} ] || echo {value} > /proc/sys/{key}"
            )?;
        }
        ToolCommand::new("nsenter")
            .arg(format!("--net={}", self.namespace_path(who).display()))
            .args(["sh", "-ec", &script])
            .run()
            .with_context(|| format!("cannot set up forwarding in {}", self.namespace_name(who)))
    }

    /// Removes all network namespaces and links of the cluster that exist.
    pub(crate) fn remove(self) -> Result<()> {
        // The kernel deletes namespaces asynchronously; the link of this machine must be gone at
        // once.
        let link = self.machine_link_name();
        if Path::new("/sys/class/net").join(&link).exists() {
            command::ip_batch(None, &format!("link del {link}\n"))?;
        }
        for name in self.namespaces()? {
            command::ip_batch(None, &format!("netns del {name}\n"))?;
        }
        Ok(())
    }

    /// Returns the names of the cluster's existing network namespaces.
    pub(crate) fn namespaces(self) -> Result<Vec<String>> {
        let prefix = format!("{}-", self.prefix());
        let Ok(entries) = std::fs::read_dir("/run/netns") else {
            return Ok(Vec::new());
        };
        let mut found = Vec::new();
        for entry in entries {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.starts_with(&prefix) {
                found.push(name);
            }
        }
        Ok(found)
    }
}
