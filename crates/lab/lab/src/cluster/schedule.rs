//! Scheduler: chooses the node of a pod.

use std::{collections::BTreeMap, net::IpAddr};

use ambit_k8s_api::{Kind, Object, ObjectKey, Pod};

/// Node of the lab, as the scheduler sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeInfo {
    pub(crate) name: String,
    pub(crate) ips: Vec<IpAddr>,
}

/// Label of every node with the node's name.
pub(super) const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";

/// Chooses the node with the fewest pods of the same owner, and among those the one with the fewest pods.
///
/// `placed` has node and owner of each running pod.
pub(super) fn choose_node(
    nodes: &[NodeInfo],
    objects: &BTreeMap<ObjectKey, Object>,
    pod: &Pod,
    placed: &[(&str, Option<&str>)],
) -> Result<String, String> {
    let spec = pod.spec.as_ref().ok_or("it has no spec")?;
    if let Some(name) = spec.node_name.as_deref().filter(|name| !name.is_empty()) {
        return match nodes.iter().any(|node| node.name == name) {
            true => Ok(name.to_owned()),
            false => Err(format!("spec.nodeName: the lab has no node {name:?}")),
        };
    }
    let owner = pod
        .metadata
        .owner_references
        .as_deref()
        .unwrap_or_default()
        .first();
    let owner = owner.map(|owner| owner.name.as_str());
    let selector = spec.node_selector.clone().unwrap_or_default();
    nodes
        .iter()
        .filter(|node| {
            selector
                .iter()
                .all(|(label, value)| has_label(node, objects, label, value))
        })
        .min_by_key(|node| {
            let here = placed.iter().filter(|(name, _)| *name == node.name);
            let siblings = here
                .clone()
                .filter(|(_, other)| owner.is_some() && *other == owner);
            (siblings.count(), here.count())
        })
        .map(|node| node.name.clone())
        .ok_or_else(|| format!("spec.nodeSelector: no node has the labels {selector:?}"))
}

fn has_label(
    node: &NodeInfo,
    objects: &BTreeMap<ObjectKey, Object>,
    label: &str,
    value: &str,
) -> bool {
    if label == HOSTNAME_LABEL {
        return node.name == value;
    }
    let object = objects.get(&ObjectKey::new(Kind::Node, "", node.name.as_str()));
    object
        .and_then(|object| object.metadata().labels.as_ref())
        .and_then(|labels| labels.get(label))
        .is_some_and(|found| found == value)
}
