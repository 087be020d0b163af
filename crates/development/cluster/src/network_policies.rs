//! NetworkPolicies by an external engine, as in clusters whose network plugin has none: kube-network-policies
//! (`build/kube-network-policies`), a process on each node that receives the first packet of every connection and
//! decides whether it passes.
//!
//! The engine has nftables queue the packets by an expression (`queue`) that not every kernel has (`CONFIG_NFT_QUEUE`).
//! Without it the engine's nftables transaction fails as a whole; the engine only logs that, and still listens. So the
//! packets are queued by the equivalent target of iptables, with rules that are otherwise the engine's own, except that
//! they do not check whether any policy applies to the packet: the engine does. Where the engine can set its own rules,
//! packets are queued and decided twice.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::{cluster::Cluster, command::ToolCommand, nodes::Node};

/// Number of the netfilter queue that the engine binds by default.
const NFQUEUE_NUMBER: &str = "100";

/// Iptables rules that queue packets to the engine. The rules apply before source NAT, where packets still have the
/// addresses of pods, and also to packets between pods on one node and to packets that IPVS forwards. Neighbour
/// discovery is ICMPv6; packets of root on the node are kubelet's probes.
const IPTABLES_RULES: &str = "-A POSTROUTING -p ipv6-icmp -j ACCEPT
-A POSTROUTING -m owner --uid-owner 0 -j ACCEPT
-A POSTROUTING -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
-A POSTROUTING -j NFQUEUE --queue-num";

/// Timeout until an engine knows all policies, pods and namespaces.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// NetworkPolicy engine on every node of a cluster, until the value is dropped.
#[derive(Debug)]
pub struct NetworkPolicies<'a> {
    cluster: &'a Cluster,
}

impl Cluster {
    /// Enforces NetworkPolicies until the returned value is dropped. Without this call, the cluster enforces no
    /// NetworkPolicy.
    pub fn enforce_network_policies(&self) -> Result<NetworkPolicies<'_>> {
        NetworkPolicies::enforce(self)
    }
}

impl<'a> NetworkPolicies<'a> {
    /// Starts the engines, and returns when the existing policies are enforced. Changes apply as soon as the engines
    /// receive them.
    pub(crate) fn enforce(cluster: &'a Cluster) -> Result<Self> {
        let policies = Self { cluster };
        for node in cluster.nodes() {
            policies.start(node)?;
        }
        for node in cluster.nodes() {
            policies.wait_until_listening(node)?;
            set_rules(node, &format!("{IPTABLES_RULES} {NFQUEUE_NUMBER}\n"))?;
        }
        Ok(policies)
    }

    fn start(&self, node: Node<'_>) -> Result<()> {
        // A killed process may have left its engine.
        self.stop(node)?;
        let pid = node.pid().context("a node is down")?;
        // With the node's files: the engine also lists pods of the runtime, if it finds its socket
        // (NRI).
        let engine = ToolCommand::new("nsenter")
            .args(["--net", "--mount"])
            .arg(format!("--target={pid}"))
            .arg(self.cluster.bin().join("kube-network-policies"))
            .arg(self.cluster.kubeconfig())
            .arg(node.name());
        self.cluster
            .processes()
            .start(&engine_process_name(node), &engine)
    }

    fn wait_until_listening(&self, node: Node<'_>) -> Result<()> {
        let processes = self.cluster.processes();
        let deadline = Instant::now() + READY_TIMEOUT;
        while !is_listening(node)? {
            ensure!(
                processes.pid(&engine_process_name(node)).is_some() && Instant::now() < deadline,
                "{} does not listen: {}",
                engine_process_name(node),
                processes.log_tail(&engine_process_name(node))
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn stop(&self, node: Node<'_>) -> Result<()> {
        // The rules are removed first: without an engine, they drop all packets.
        set_rules(node, "")?;
        let processes = self.cluster.processes();
        processes.stop(&engine_process_name(node), Duration::from_secs(10))
    }
}

impl Drop for NetworkPolicies<'_> {
    fn drop(&mut self) {
        for node in self.cluster.nodes() {
            if let Err(error) = self.stop(node) {
                eprintln!("network policies stay on {}: {error:#}", node.name());
            }
        }
    }
}

/// Returns the name of a node's engine process.
fn engine_process_name(node: Node<'_>) -> String {
    format!("network-policies-{}", node.name())
}

/// Returns whether the engine has bound its netfilter queue. The engine binds the queue once it has received all
/// policies, pods and namespaces.
fn is_listening(node: Node<'_>) -> Result<bool> {
    let pid = node.pid().context("a node is down")?;
    let queues = format!("/proc/{pid}/net/netfilter/nfnetlink_queue");
    let text = fs::read_to_string(&queues).with_context(|| format!("no {queues}"))?;
    let mut numbers = text.lines().map(|line| line.split_whitespace().next());
    Ok(numbers.any(|number| number == Some(NFQUEUE_NUMBER)))
}

/// Replaces all rules of the engine's own iptables chain, and leaves the kubelet's chains in the same table unchanged.
fn set_rules(node: Node<'_>, rules: &str) -> Result<()> {
    for restore in ["iptables-nft-restore", "ip6tables-nft-restore"] {
        ToolCommand::new("nsenter")
            .arg(format!("--net={}", node.netns().display()))
            .args([restore, "--noflush"])
            .run_with_input(&format!("*mangle\n-F POSTROUTING\n{rules}COMMIT\n"))?;
    }
    Ok(())
}
