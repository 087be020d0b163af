//! NetworkPolicies by an engine of others, as in clusters whose network plugin leaves them to one:
//! kube-network-policies (`build/kube-network-policies`), a process on each node that is handed the first
//! packet of every connection and says whether it passes.
//!
//! The engine has nftables hand it the packets by an expression (`queue`) that not every kernel has
//! (`CONFIG_NFT_QUEUE`). Without it the engine's transaction fails as a whole; it only logs that, and
//! listens all the same. So the packets come to it through the target of iptables that means the same, by
//! rules that are otherwise the engine's own, except that they do not ask whether any policy is about the
//! packet: the engine does. Where it can have its rules it judges twice.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::{cluster::Cluster, command::Tool, nodes::Node};

/// The engine's queue of packets, where it is not told another.
const QUEUE: &str = "100";

/// Before source NAT, where packets have the addresses of pods, also those that go from pod to pod on one
/// node, and those that are sent on by IPVS. Neighbour discovery is ICMPv6; what root on the node sends is
/// kubelet's probes and the like.
const RULES: &str = "-A POSTROUTING -p ipv6-icmp -j ACCEPT
-A POSTROUTING -m owner --uid-owner 0 -j ACCEPT
-A POSTROUTING -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
-A POSTROUTING -j NFQUEUE --queue-num";

/// How long an engine may take to know all policies, pods and namespaces.
const PATIENCE: Duration = Duration::from_secs(60);

/// An engine on every node of a cluster, gone with the value.
#[derive(Debug)]
pub struct NetworkPolicies<'a> {
    cluster: &'a Cluster,
}

impl<'a> NetworkPolicies<'a> {
    /// Returns when the policies that there are hold. Changes hold as soon as the engines learn of them.
    pub(crate) fn enforce(cluster: &'a Cluster) -> Result<Self> {
        let policies = Self { cluster };
        for node in cluster.nodes() {
            policies.start(node)?;
        }
        for node in cluster.nodes() {
            policies.listens(node)?;
            set_rules(node, &format!("{RULES} {QUEUE}\n"))?;
        }
        Ok(policies)
    }

    fn start(&self, node: Node<'_>) -> Result<()> {
        // That of a process that was killed.
        self.stop(node)?;
        let pid = node.pid().context("a node is down")?;
        // With the node's files: the engine asks the runtime for pods, too, if it finds its socket (NRI).
        let engine = Tool::new("nsenter")
            .args(["--net", "--mount"])
            .arg(format!("--target={pid}"))
            .arg(self.cluster.bin().join("kube-network-policies"))
            .arg(self.cluster.kubeconfig())
            .arg(node.name());
        self.cluster.processes().start(&name(node), &engine)
    }

    fn listens(&self, node: Node<'_>) -> Result<()> {
        let processes = self.cluster.processes();
        let deadline = Instant::now() + PATIENCE;
        while !is_listening(node)? {
            ensure!(
                processes.pid(&name(node)).is_some() && Instant::now() < deadline,
                "{} does not listen: {}",
                name(node),
                processes.tail(&name(node))
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn stop(&self, node: Node<'_>) -> Result<()> {
        // First: nothing passes where the rules have no engine to ask.
        set_rules(node, "")?;
        let processes = self.cluster.processes();
        processes.stop(&name(node), Duration::from_secs(10))
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

/// The engine's process.
fn name(node: Node<'_>) -> String {
    format!("network-policies-{}", node.name())
}

/// The engine binds its queue when it knows all objects.
fn is_listening(node: Node<'_>) -> Result<bool> {
    let pid = node.pid().context("a node is down")?;
    let queues = format!("/proc/{pid}/net/netfilter/nfnetlink_queue");
    let text = fs::read_to_string(&queues).with_context(|| format!("no {queues}"))?;
    let mut numbers = text.lines().map(|line| line.split_whitespace().next());
    Ok(numbers.any(|number| number == Some(QUEUE)))
}

/// Puts rules in the place of those of a chain that nobody else uses here; the kubelet has others in its
/// table.
fn set_rules(node: Node<'_>, rules: &str) -> Result<()> {
    for restore in ["iptables-nft-restore", "ip6tables-nft-restore"] {
        Tool::new("nsenter")
            .arg(format!("--net={}", node.netns().display()))
            .args([restore, "--noflush"])
            .feed(&format!("*mangle\n-F POSTROUTING\n{rules}COMMIT\n"))?;
    }
    Ok(())
}
