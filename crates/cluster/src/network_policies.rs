//! NetworkPolicies in the nodes' kernels, where network plugins that know them have them: each node judges
//! the packets that it forwards from and to its own pods, by their addresses and ports. What the node sends
//! itself, such as kubelet's probes, is not forwarded.
//!
//! The rules are those of the objects at the moment of the call: tests change objects and call again.

use std::{collections::BTreeMap, fmt::Write, net::IpAddr};

use anyhow::{Context, Result, bail};
use k8s_openapi::{
    api::{
        core::v1::{Namespace, Pod},
        networking::v1::{
            IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
        },
    },
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};
use kube::{
    Api, Client, ResourceExt,
    core::{Selector, SelectorExt},
};

use crate::{cluster::Cluster, command::Tool, nodes::Node};

const TABLE: &str = "inet network_policies";

/// The rules on all nodes of a cluster, gone with the value.
#[derive(Debug)]
pub struct NetworkPolicies<'a> {
    cluster: &'a Cluster,
}

impl<'a> NetworkPolicies<'a> {
    pub(crate) fn new(cluster: &'a Cluster) -> Self {
        Self { cluster }
    }

    /// Puts what the objects say now in the place of what they said before.
    pub async fn enforce(&self, client: &Client) -> Result<()> {
        let objects = Objects::list(client).await?;
        for node in self.cluster.nodes() {
            let rules = objects.rules(&node.name())?;
            nft(node, &format!("{}{rules}", clear()))?;
        }
        Ok(())
    }
}

impl Drop for NetworkPolicies<'_> {
    fn drop(&mut self) {
        for node in self.cluster.nodes() {
            if let Err(error) = nft(node, &clear()) {
                eprintln!("network policies stay on {}: {error:#}", node.name());
            }
        }
    }
}

/// A table can be deleted only where it is.
fn clear() -> String {
    format!("table {TABLE}\ndelete table {TABLE}\n")
}

fn nft(node: Node<'_>, rules: &str) -> Result<()> {
    Tool::new("nsenter")
        .arg(format!("--net={}", node.netns().display()))
        .args(["nft", "--file", "-"])
        .feed(rules)
}

/// The objects that decide.
struct Objects {
    policies: Vec<NetworkPolicy>,
    pods: Vec<Pod>,
    namespaces: Vec<Namespace>,
}

impl Objects {
    async fn list(client: &Client) -> Result<Self> {
        let all = Default::default();
        Ok(Self {
            policies: Api::all(client.clone()).list(&all).await?.items,
            pods: Api::all(client.clone()).list(&all).await?.items,
            namespaces: Api::all(client.clone()).list(&all).await?.items,
        })
    }

    /// What `nft` is to be told on a node.
    fn rules(&self, node: &str) -> Result<String> {
        let (mut jumps, mut chains) = (String::new(), String::new());
        for pod in &self.pods {
            if pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) != Some(node) {
                continue;
            }
            for direction in [Direction::Ingress, Direction::Egress] {
                let Some(allowed) = self.allowed(pod, direction)? else {
                    continue;
                };
                let uid = pod.uid().context("a pod without uid")?.replace('-', "_");
                let chain = format!("{}_{uid}", direction.name());
                for address in addresses(pod) {
                    let (family, own) = (family(address), direction.own());
                    writeln!(jumps, "{family} {own} {address} jump {chain}")?;
                }
                writeln!(chains, "chain {chain} {{\n{allowed}drop\n}}")?;
            }
        }
        Ok(format!(
            "table {TABLE} {{\n{chains}chain forward {{\n\
             type filter hook forward priority filter; policy accept;\n\
             ct state established,related accept\n{jumps}}}\n}}\n"
        ))
    }

    /// What passes from or to a pod; `None` if no policy is about it, and everything does.
    fn allowed(&self, pod: &Pod, direction: Direction) -> Result<Option<String>> {
        let mut allowed = None;
        for policy in &self.policies {
            let Some(spec) = &policy.spec else { continue };
            if policy.namespace() != pod.namespace()
                || !direction.is_of(spec)
                || !selects(spec.pod_selector.as_ref(), pod.labels())?
            {
                continue;
            }
            let text = allowed.get_or_insert_with(String::new);
            for (peers, ports) in direction.rules(spec) {
                for peer in self.peers(policy, peers, direction)? {
                    for port in matches_of_ports(ports)? {
                        writeln!(text, "{peer} {port} return")?;
                    }
                }
            }
        }
        Ok(allowed)
    }

    /// Matches for the other side of a packet; one that is empty if it may be anybody.
    fn peers(
        &self,
        policy: &NetworkPolicy,
        peers: Option<&Vec<NetworkPolicyPeer>>,
        direction: Direction,
    ) -> Result<Vec<String>> {
        let Some(peers) = peers.filter(|peers| !peers.is_empty()) else {
            return Ok(vec![String::new()]);
        };
        let side = direction.peer();
        let mut matches = Vec::new();
        for peer in peers {
            if let Some(block) = &peer.ip_block {
                matches.push(match_of_block(block, side));
                continue;
            }
            for pod in &self.pods {
                if self.is_peer(policy, peer, pod)? {
                    matches.extend(
                        addresses(pod)
                            .map(|address| format!("{} {side} {address}", family(address))),
                    );
                }
            }
        }
        Ok(matches)
    }

    fn is_peer(&self, policy: &NetworkPolicy, peer: &NetworkPolicyPeer, pod: &Pod) -> Result<bool> {
        let near = match &peer.namespace_selector {
            None => pod.namespace() == policy.namespace(),
            Some(selector) => {
                let mut namespaces = self.namespaces.iter();
                let of_pod = namespaces.find(|space| Some(space.name_any()) == pod.namespace());
                let labels = of_pod.context("a pod without namespace")?.labels();
                selects(Some(selector), labels)?
            }
        };
        Ok(near && selects(peer.pod_selector.as_ref(), pod.labels())?)
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Ingress,
    Egress,
}

type Rule<'a> = (
    Option<&'a Vec<NetworkPolicyPeer>>,
    Option<&'a Vec<NetworkPolicyPort>>,
);

impl Direction {
    fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }

    /// Where a packet has the address of the pod that the policy is about.
    fn own(self) -> &'static str {
        match self {
            Self::Ingress => "daddr",
            Self::Egress => "saddr",
        }
    }

    /// Where it has the other's.
    fn peer(self) -> &'static str {
        match self {
            Self::Ingress => "saddr",
            Self::Egress => "daddr",
        }
    }

    fn is_of(self, spec: &NetworkPolicySpec) -> bool {
        match (&spec.policy_types, self) {
            (Some(types), _) => types
                .iter()
                .any(|name| name.eq_ignore_ascii_case(self.name())),
            (None, Self::Ingress) => true,
            (None, Self::Egress) => spec.egress.is_some(),
        }
    }

    fn rules(self, spec: &NetworkPolicySpec) -> Vec<Rule<'_>> {
        match self {
            Self::Ingress => {
                let rules = spec.ingress.iter().flatten();
                rules.map(|r| (r.from.as_ref(), r.ports.as_ref())).collect()
            }
            Self::Egress => {
                let rules = spec.egress.iter().flatten();
                rules.map(|r| (r.to.as_ref(), r.ports.as_ref())).collect()
            }
        }
    }
}

fn selects(selector: Option<&LabelSelector>, labels: &BTreeMap<String, String>) -> Result<bool> {
    let selector = selector.cloned().unwrap_or_default();
    Ok(Selector::try_from(selector)?.matches(labels))
}

/// The addresses that packets of a pod have: those of a pod in its node's network are the node's.
fn addresses(pod: &Pod) -> impl Iterator<Item = IpAddr> {
    let host = pod.spec.as_ref().and_then(|spec| spec.host_network);
    let status = pod.status.as_ref().filter(|_| host != Some(true));
    let addresses = status.and_then(|status| status.pod_ips.as_ref());
    addresses
        .into_iter()
        .flatten()
        .filter_map(|address| address.ip.parse().ok())
}

fn family(address: IpAddr) -> &'static str {
    match address {
        IpAddr::V4(_) => "ip",
        IpAddr::V6(_) => "ip6",
    }
}

fn match_of_block(block: &IPBlock, side: &str) -> String {
    let family = if block.cidr.contains(':') {
        "ip6"
    } else {
        "ip"
    };
    let mut text = format!("{family} {side} {}", block.cidr);
    if let Some(except) = block.except.as_ref().filter(|except| !except.is_empty()) {
        text += &format!(" {family} {side} != {{ {} }}", except.join(", "));
    }
    text
}

/// Matches for the port that a packet goes to; one that is empty if it may be any.
fn matches_of_ports(ports: Option<&Vec<NetworkPolicyPort>>) -> Result<Vec<String>> {
    let Some(ports) = ports.filter(|ports| !ports.is_empty()) else {
        return Ok(vec![String::new()]);
    };
    ports.iter().map(match_of_port).collect()
}

fn match_of_port(port: &NetworkPolicyPort) -> Result<String> {
    let protocol = port.protocol.as_deref().unwrap_or("TCP").to_lowercase();
    Ok(match (&port.port, port.end_port) {
        (None, _) => format!("meta l4proto {protocol}"),
        (Some(IntOrString::Int(first)), None) => format!("{protocol} dport {first}"),
        (Some(IntOrString::Int(first)), Some(last)) => format!("{protocol} dport {first}-{last}"),
        (Some(IntOrString::String(name)), _) => {
            bail!("port {name}: network policies here know ports by number alone")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(name: &str, node: &str, address: &str) -> Value {
        json!({
            "metadata": {"name": name, "namespace": "a", "uid": name, "labels": {"app": name}},
            "spec": {"nodeName": node, "containers": []},
            "status": {"podIPs": [{"ip": address}]},
        })
    }

    fn rules(policy: &Value) -> Result<String> {
        let namespace = json!({"metadata": {"name": "a", "labels": {"team": "x"}}});
        let pods = [
            pod("server", "n1", "10.0.1.2"),
            pod("client", "n2", "10.0.2.2"),
        ];
        let objects = Objects {
            policies: vec![serde_json::from_value(json!({
                "metadata": {"name": "policy", "namespace": "a"}, "spec": policy,
            }))?],
            pods: pods.map(|pod| serde_json::from_value(pod).unwrap()).into(),
            namespaces: vec![serde_json::from_value(namespace)?],
        };
        objects.rules("n1")
    }

    /// What is in a chain, a line each.
    fn chain(rules: &str, name: &str) -> Option<Vec<String>> {
        let (_, text) = rules.split_once(&format!("chain {name} {{\n"))?;
        let (text, _) = text.split_once("\n}")?;
        Some(text.lines().map(str::to_owned).collect())
    }

    #[test]
    fn a_policy_without_rules_lets_nothing_in_to_the_pods_that_it_selects() {
        let rules = rules(&json!({"podSelector": {"matchLabels": {"app": "server"}}})).unwrap();
        assert_eq!(chain(&rules, "ingress_server").unwrap(), ["drop"]);
        assert_eq!(chain(&rules, "egress_server"), None);
        let forward = chain(&rules, "forward").unwrap();
        assert_eq!(
            forward.last().unwrap(),
            "ip daddr 10.0.1.2 jump ingress_server"
        );
    }

    #[test]
    fn pods_of_other_nodes_are_judged_there() {
        let rules = rules(&json!({"podSelector": {"matchLabels": {"app": "client"}}})).unwrap();
        assert!(!rules.contains("jump"), "{rules}");
    }

    #[test]
    fn peers_and_ports_are_every_pair_of_both() {
        let rules = rules(&json!({
            "podSelector": {},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{
                "from": [
                    {"podSelector": {"matchLabels": {"app": "client"}}},
                    {"namespaceSelector": {"matchLabels": {"team": "y"}}},
                    {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.9.0.0/16"]}},
                ],
                "ports": [{"port": 80, "endPort": 90}, {"protocol": "UDP"}],
            }],
            "egress": [{}],
        }))
        .unwrap();
        assert_eq!(
            chain(&rules, "ingress_server").unwrap(),
            [
                "ip saddr 10.0.2.2 tcp dport 80-90 return",
                "ip saddr 10.0.2.2 meta l4proto udp return",
                "ip saddr 10.0.0.0/8 ip saddr != { 10.9.0.0/16 } tcp dport 80-90 return",
                "ip saddr 10.0.0.0/8 ip saddr != { 10.9.0.0/16 } meta l4proto udp return",
                "drop",
            ]
        );
        assert_eq!(
            chain(&rules, "egress_server").unwrap(),
            ["  return", "drop"]
        );
    }

    #[test]
    fn a_named_port_is_an_error() {
        let error = rules(&json!({
            "podSelector": {}, "ingress": [{"ports": [{"port": "http"}]}],
        }))
        .unwrap_err();
        assert!(error.to_string().contains("http"), "{error}");
    }
}
