//! NetworkPolicies that let captured pods' traffic not through: pods of the mesh reach each other on
//! port 15008, and kubelet's probes come from an address of their own.

use std::net::{IpAddr, Ipv4Addr};

use serde_json::Value;

use super::{Finding, Level, Snapshot, name, namespace_of};
use crate::membership::text;

/// Where captured pods are reached.
const HBONE: u64 = 15008;
/// Where kubelet's probes of captured pods come from.
const PROBES: Ipv4Addr = Ipv4Addr::new(169, 254, 7, 127);

pub(super) fn findings(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    let namespaces = snapshot.mesh_namespaces();
    for policy in &snapshot.network_policies {
        if namespaces.contains(&namespace_of(policy)) {
            findings.extend(hindered(policy));
        } else if namespace_of(policy) == snapshot.mesh_namespace && !super::is_ours(policy) {
            findings.extend(mesh_hindered(policy));
        }
    }
    findings
}

/// What a policy keeps from captured pods.
fn hindered(policy: &Value) -> Vec<Finding> {
    let about = || format!("NetworkPolicy {}/{}", namespace_of(policy), name(policy));
    let mut findings = Vec::new();
    if applies(policy, "Ingress") {
        let rules = rules(policy, "ingress");
        if rules
            .iter()
            .any(|rule| names_tcp_ports(rule) && !lets(rule, HBONE))
        {
            findings.push(Finding::new(
                Level::Error,
                about(),
                "it lets callers in on some ports and not on 15008, where the mesh brings them",
                "add port 15008 (TCP) to the ports of its ingress rules; the ports themselves can be \
                 kept to by an AuthorizationPolicy",
            ));
        }
        if !rules.iter().any(|rule| lets_probes_in(rule)) {
            findings.push(Finding::new(
                Level::Warning,
                about(),
                format!(
                    "it does not let {PROBES} in, from where kubelet's probes of captured pods come"
                ),
                format!(
                    "add an ingress rule from ipBlock {PROBES}/32 if the pods have probes and the \
                         network plugin does not let every node in"
                ),
            ));
        }
    }
    if applies(policy, "Egress") {
        let rules = rules(policy, "egress");
        if rules
            .iter()
            .any(|rule| names_tcp_ports(rule) && !lets(rule, HBONE))
        {
            findings.push(Finding::new(
                Level::Error,
                about(),
                "it lets pods out to some ports and not to 15008, by which the mesh goes",
                "add port 15008 (TCP) to the ports of its egress rules",
            ));
        }
    }
    findings
}

/// What a policy of others keeps from the control plane.
fn mesh_hindered(policy: &Value) -> Option<Finding> {
    let selected = policy
        .pointer("/spec/podSelector/matchLabels")
        .and_then(Value::as_object);
    let app = selected
        .and_then(|labels| labels.get("app"))
        .and_then(Value::as_str);
    let concerns = match app {
        Some(app) => app == "istiod",
        None => selected.is_none_or(serde_json::Map::is_empty),
    };
    let lets_in = rules(policy, "ingress")
        .iter()
        .any(|rule| lets(rule, 15012));
    (concerns && applies(policy, "Ingress") && !lets_in).then(|| {
        Finding::new(
            Level::Error,
            format!("NetworkPolicy {}/{}", namespace_of(policy), name(policy)),
            "it keeps the node proxies from the control plane's port 15012",
            "`ambit upgrade --set global.networkPolicy.enabled=true` adds policies that let them",
        )
    })
}

fn applies(policy: &Value, direction: &str) -> bool {
    match policy
        .pointer("/spec/policyTypes")
        .and_then(Value::as_array)
    {
        Some(types) => types.iter().any(|kind| kind == direction),
        None => direction == "Ingress" || policy.pointer("/spec/egress").is_some(),
    }
}

fn rules<'a>(policy: &'a Value, direction: &str) -> Vec<&'a Value> {
    let rules = policy
        .pointer(&format!("/spec/{direction}"))
        .and_then(Value::as_array);
    rules.into_iter().flatten().collect()
}

fn ports(rule: &Value) -> Vec<&Value> {
    rule.get("ports")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .collect()
}

fn is_tcp(port: &Value) -> bool {
    matches!(text(port, "/protocol"), "" | "TCP")
}

/// Whether a rule is about some TCP ports only. DNS alone is not: the node proxy asks from the pod.
fn names_tcp_ports(rule: &Value) -> bool {
    let other_than_dns =
        |port: &&Value| is_tcp(port) && port.get("port").and_then(Value::as_u64) != Some(53);
    ports(rule).iter().any(other_than_dns)
}

/// Whether a rule lets TCP to this port through. Named ports never mean it.
fn lets(rule: &Value, number: u64) -> bool {
    let ports = ports(rule);
    ports.is_empty()
        || ports.iter().any(|port| {
            let first = match port.get("port") {
                None => return is_tcp(port),
                Some(first) => first.as_u64(),
            };
            let last = port.get("endPort").and_then(Value::as_u64);
            is_tcp(port)
                && first.is_some_and(|first| (first..=last.unwrap_or(first)).contains(&number))
        })
}

/// Whether a rule lets the address of kubelet's probes in, whatever the ports.
fn lets_probes_in(rule: &Value) -> bool {
    let peers = rule.get("from").and_then(Value::as_array);
    let Some(peers) = peers.filter(|peers| !peers.is_empty()) else {
        return true;
    };
    peers.iter().any(|peer| {
        let Some(block) = peer.get("ipBlock") else {
            return false;
        };
        let except = block.get("except").and_then(Value::as_array);
        let excepted = except
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .any(|range| contains(range, PROBES.into()));
        contains(text(block, "/cidr"), PROBES.into()) && !excepted
    })
}

/// Whether a range such as 10.0.0.0/8 has an address.
fn contains(range: &str, address: IpAddr) -> bool {
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
    use serde_json::json;

    use super::*;

    fn policy(spec: Value) -> Value {
        json!({"metadata": {"namespace": "shop", "name": "p"}, "spec": spec})
    }

    fn snapshot(spec: Value) -> Snapshot {
        Snapshot {
            mesh_namespace: "istio-system".into(),
            namespaces: vec![
                json!({"metadata": {"name": "shop", "labels": {"istio.io/dataplane-mode": "ambient"}}}),
            ],
            network_policies: vec![policy(spec)],
            ..Snapshot::default()
        }
    }

    #[test]
    fn policies_must_let_tunnels_and_probes_through() {
        use Level::{Error, Warning};
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
    fn namespaces_outside_the_mesh_are_looked_at_only_if_asked_for() {
        let mut snapshot = snapshot(json!({"ingress": [{"ports": [{"port": 80}]}]}));
        snapshot.namespaces = vec![json!({"metadata": {"name": "shop"}})];
        assert_eq!(findings(&snapshot), []);
        snapshot.asked_for.push("shop".into());
        assert_eq!(findings(&snapshot).len(), 1);
    }

    #[test]
    fn the_control_plane_must_be_reached() {
        let policy = |spec: Value| json!({"metadata": {"namespace": "istio-system", "name": "deny"}, "spec": spec});
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
        let probes = IpAddr::from(PROBES);
        for (range, has) in [
            ("169.254.7.127/32", true),
            ("169.254.0.0/16", true),
            ("0.0.0.0/0", true),
            ("10.0.0.0/8", false),
            ("169.254.7.127", true),
            ("::/0", false),
            ("x", false),
        ] {
            assert_eq!(contains(range, probes), has, "{range}");
        }
    }
}
