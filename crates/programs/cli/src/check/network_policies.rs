//! NetworkPolicies that block the traffic of captured pods: pods of the mesh reach each other on
//! port 15008, and kubelet's probes come from an address of their own.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
};

use ambit_install::object::{is_managed_by_ambit, name, namespace_of};
use k8s_openapi::{
    api::networking::v1::{NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec},
    apimachinery::pkg::util::intstr::IntOrString,
};

use super::{
    finding::{Finding, FindingLevel},
    snapshot::Snapshot,
};

/// Port on which captured pods accept connections from the mesh.
const HBONE_PORT: i32 = 15008;
/// Port on which the control plane serves node proxies.
const XDS_PORT: i32 = 15012;
/// Source address of kubelet's probes of captured pods.
const PROBE_SOURCE_ADDRESS: Ipv4Addr = Ipv4Addr::new(169, 254, 7, 127);

pub(super) fn findings(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    let namespaces = snapshot.mesh_namespaces();
    for policy in &snapshot.network_policies {
        if namespaces.contains(&namespace_of(policy)) {
            findings.extend(blocked_traffic_findings(policy));
        } else if namespace_of(policy) == snapshot.mesh_namespace && !is_managed_by_ambit(policy) {
            findings.extend(blocked_control_plane_finding(policy));
        }
    }
    findings
}

/// Returns findings on the HBONE traffic and kubelet probes of captured pods that a NetworkPolicy blocks.
fn blocked_traffic_findings(policy: &NetworkPolicy) -> Vec<Finding> {
    let about = || format!("NetworkPolicy {}/{}", namespace_of(policy), name(policy));
    let mut findings = Vec::new();
    let Some(spec) = &policy.spec else {
        return findings;
    };
    if applies_to_direction(spec, "Ingress") {
        let rules = spec.ingress.as_deref().unwrap_or_default();
        if rules
            .iter()
            .any(|rule| omits_tunnels(rule.ports.as_deref()))
        {
            findings.push(Finding::new(
                FindingLevel::Error,
                about(),
                "its ingress rules list ports but not 15008, the port of HBONE",
                "add port 15008 (TCP) to the ports of its ingress rules; restrict the application's \
                 ports with an AuthorizationPolicy",
            ));
        }
        if !rules.iter().any(|rule| allows_probes(rule.from.as_deref())) {
            findings.push(Finding::new(
                FindingLevel::Warning,
                about(),
                format!("it blocks {PROBE_SOURCE_ADDRESS}, the source of kubelet's probes of captured pods"),
                format!(
                    "add an ingress rule from ipBlock {PROBE_SOURCE_ADDRESS}/32 if the pods have probes and the \
                         network plugin does not let every node in"
                ),
            ));
        }
    }
    if applies_to_direction(spec, "Egress") {
        let rules = spec.egress.as_deref().unwrap_or_default();
        if rules
            .iter()
            .any(|rule| omits_tunnels(rule.ports.as_deref()))
        {
            findings.push(Finding::new(
                FindingLevel::Error,
                about(),
                "its egress rules list ports but not 15008, the port of HBONE",
                "add port 15008 (TCP) to the ports of its egress rules",
            ));
        }
    }
    findings
}

/// Returns a finding if a NetworkPolicy other than the chart's blocks node proxies from the control plane's xDS port.
fn blocked_control_plane_finding(policy: &NetworkPolicy) -> Option<Finding> {
    let spec = policy.spec.as_ref()?;
    let selected = spec
        .pod_selector
        .iter()
        .find_map(|selector| selector.match_labels.as_ref());
    let concerns = match selected.and_then(|labels| labels.get("app")) {
        Some(app) => app == "istiod",
        None => selected.is_none_or(BTreeMap::is_empty),
    };
    let mut rules = spec.ingress.iter().flatten();
    let lets_in =
        rules.any(|rule| allows_port(rule.ports.as_deref().unwrap_or_default(), XDS_PORT));
    (concerns && applies_to_direction(spec, "Ingress") && !lets_in).then(|| {
        Finding::new(
            FindingLevel::Error,
            format!("NetworkPolicy {}/{}", namespace_of(policy), name(policy)),
            "it blocks the node proxies from the control plane's port 15012",
            "`ambit upgrade --set global.networkPolicy.enabled=true` adds policies that allow them",
        )
    })
}

fn applies_to_direction(spec: &NetworkPolicySpec, direction: &str) -> bool {
    match &spec.policy_types {
        Some(types) => types.iter().any(|kind| kind == direction),
        None => direction == "Ingress" || spec.egress.is_some(),
    }
}

fn is_tcp(port: &NetworkPolicyPort) -> bool {
    matches!(port.protocol.as_deref(), None | Some("TCP"))
}

/// Whether the ports of a rule include TCP ports but not the HBONE port. TCP port 53 alone does not count: the node
/// proxy sends DNS queries from the pod.
fn omits_tunnels(ports: Option<&[NetworkPolicyPort]>) -> bool {
    let ports = ports.unwrap_or_default();
    let dns = Some(IntOrString::Int(53));
    let mut tcp = ports.iter().filter(|port| is_tcp(port));
    tcp.any(|port| port.port != dns) && !allows_port(ports, HBONE_PORT)
}

/// Whether a rule with these ports allows TCP to a port number. Named ports never match it.
fn allows_port(ports: &[NetworkPolicyPort], number: i32) -> bool {
    let means = |port: &NetworkPolicyPort| match port.port {
        None => true,
        Some(IntOrString::Int(first)) => (first..=port.end_port.unwrap_or(first)).contains(&number),
        Some(IntOrString::String(_)) => false,
    };
    ports.is_empty() || ports.iter().any(|port| is_tcp(port) && means(port))
}

/// Whether an ingress rule for these peers allows the source address of kubelet's probes; ports are not considered.
fn allows_probes(peers: Option<&[NetworkPolicyPeer]>) -> bool {
    let Some(peers) = peers.filter(|peers| !peers.is_empty()) else {
        return true;
    };
    let blocks = peers.iter().filter_map(|peer| peer.ip_block.as_ref());
    blocks.into_iter().any(|block| {
        let mut except = block.except.iter().flatten();
        cidr_contains(&block.cidr, PROBE_SOURCE_ADDRESS.into())
            && !except.any(|range| cidr_contains(range, PROBE_SOURCE_ADDRESS.into()))
    })
}

/// Whether an IPv4 range in CIDR notation contains an address.
fn cidr_contains(range: &str, address: IpAddr) -> bool {
    let Some((network, length)) = range.split_once('/') else {
        return range.parse() == Ok(address);
    };
    let (Ok(IpAddr::V4(network)), Ok(length), IpAddr::V4(address)) =
        (network.parse(), length.parse::<u32>(), address)
    else {
        return false;
    };
    let ignored = 32_u32.saturating_sub(length);
    let cut = |ip: Ipv4Addr| u32::from(ip).checked_shr(ignored).unwrap_or(0);
    cut(network) == cut(address)
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn typed<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn policy(spec: Value) -> NetworkPolicy {
        typed(json!({"metadata": {"namespace": "shop", "name": "p"}, "spec": spec}))
    }

    fn snapshot(spec: Value) -> Snapshot {
        Snapshot {
            mesh_namespace: "istio-system".into(),
            namespaces: vec![typed(
                json!({"metadata": {"name": "shop", "labels": {"istio.io/dataplane-mode": "ambient"}}}),
            )],
            network_policies: vec![policy(spec)],
            ..Snapshot::default()
        }
    }

    #[test]
    fn policies_that_block_tunnels_or_probes_are_found() {
        use FindingLevel::{Error, Warning};
        let tcp = |port: u64| json!({"port": port, "protocol": "TCP"});
        for (spec, expected) in [
            // Everything from everywhere.
            (json!({"policyTypes": ["Ingress"], "ingress": [{}]}), vec![]),
            // Nothing at all: that is meant, but for the probes.
            (json!({"policyTypes": ["Ingress"]}), vec![Warning]),
            (json!({"ingress": [{"ports": [tcp(80)]}]}), vec![Error]),
            (
                json!({"ingress": [{"ports": [tcp(80), tcp(15008)]}]}),
                vec![],
            ),
            (
                json!({"ingress": [{"ports": [{"port": 15000, "endPort": 15010}]}]}),
                vec![],
            ),
            (
                json!({"ingress": [{"ports": [{"port": "http"}]}]}),
                vec![Error],
            ),
            (
                json!({"ingress": [{"ports": [{"protocol": "TCP"}]}]}),
                vec![],
            ),
            (
                json!({"ingress": [{"from": [{"podSelector": {}}]}]}),
                vec![Warning],
            ),
            (
                json!({"ingress": [{"from": [{"podSelector": {}}]}, {"from": [{"ipBlock": {"cidr": "169.254.0.0/16"}}]}]}),
                vec![],
            ),
            (
                json!({"ingress": [{"from": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}}]}]}),
                vec![Warning],
            ),
            (
                json!({"policyTypes": ["Egress"], "egress": [{"ports": [tcp(5432)]}]}),
                vec![Error],
            ),
            (
                json!({"policyTypes": ["Egress"], "egress": [{"ports": [{"port": 53, "protocol": "UDP"}, tcp(53)]}]}),
                vec![],
            ),
            (json!({"policyTypes": ["Egress"], "egress": []}), vec![]),
        ] {
            let levels: Vec<_> = findings(&snapshot(spec.clone()))
                .iter()
                .map(|f| f.level)
                .collect();
            assert_eq!(levels, expected, "{spec}");
        }
    }

    #[test]
    fn namespaces_outside_the_mesh_are_checked_on_request() {
        let mut snapshot = snapshot(json!({"ingress": [{"ports": [{"port": 80}]}]}));
        snapshot.namespaces = vec![typed(json!({"metadata": {"name": "shop"}}))];
        assert_eq!(findings(&snapshot), []);
        snapshot.selected_namespaces.push("shop".into());
        assert_eq!(findings(&snapshot).len(), 1);
    }

    #[test]
    fn the_control_plane_must_be_reached() {
        let policy = |spec: Value| {
            let metadata = json!({"namespace": "istio-system", "name": "deny"});
            typed(json!({"metadata": metadata, "spec": spec}))
        };
        let with = |spec| Snapshot {
            mesh_namespace: "istio-system".into(),
            network_policies: vec![policy(spec)],
            ..Snapshot::default()
        };
        assert_eq!(findings(&with(json!({"podSelector": {}}))).len(), 1);
        assert_eq!(
            findings(&with(json!({"podSelector": {"matchLabels": {"app": "x"}}}))).len(),
            0
        );
        assert_eq!(
            findings(&with(
                json!({"podSelector": {}, "ingress": [{"ports": [{"port": 15012}]}]})
            ))
            .len(),
            0
        );
    }

    #[test]
    fn ranges() {
        let probes = IpAddr::from(PROBE_SOURCE_ADDRESS);
        for (range, has) in [
            ("169.254.7.127/32", true),
            ("169.254.0.0/16", true),
            ("0.0.0.0/0", true),
            ("10.0.0.0/8", false),
            ("169.254.7.127", true),
            ("::/0", false),
            ("x", false),
        ] {
            assert_eq!(cidr_contains(range, probes), has, "{range}");
        }
    }
}
