//! Removes the startup taint, with which nodes register so that no pod starts before the mesh can
//! capture it, from nodes with a ready agent and node proxy. Only the leader does so.
//!
//! The taint and the labels are those of Istio's node untaint controller.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ambit_kube_kit::watch::{self as objects, ObjectId, ObjectWatch, WatchEvent};
use ambit_rt::{Backoff, ErrorChain};
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::time::Instant;

/// Label selectors of the pods that must be ready on a node before its taint is removed.
const REQUIRED_PODS: [&str; 2] = ["k8s-app=istio-cni-node", "app=ztunnel"];
/// First and longest backoff after a write that failed.
const WRITE_BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Node with the startup taint: its resource version, and its other taints.
#[derive(Clone, Debug, PartialEq)]
struct TaintedNode {
    resource_version: String,
    other_taints: Vec<Taint>,
}

/// Nodes with the startup taint, and ready pods. Does no IO.
#[derive(Debug, Default)]
struct TaintTable {
    tainted_nodes: BTreeMap<Box<str>, TaintedNode>,
    /// Nodes of ready pods, for each of [`REQUIRED_PODS`].
    ready_pod_nodes: [BTreeMap<ObjectId, String>; 2],
}

impl TaintTable {
    fn on_node(&mut self, event: WatchEvent<TaintedNode>) {
        match event {
            WatchEvent::Object(id, node) => drop(self.tainted_nodes.insert(id.name, node)),
            WatchEvent::Removed(id) => drop(self.tainted_nodes.remove(&id.name)),
            WatchEvent::ListStarted | WatchEvent::ListCompleted | WatchEvent::Unavailable(_) => {}
        }
    }

    fn on_pod(&mut self, required_pod: usize, event: WatchEvent<String>) {
        let Some(ready) = self.ready_pod_nodes.get_mut(required_pod) else {
            return;
        };
        match event {
            WatchEvent::Object(id, node) => drop(ready.insert(id, node)),
            WatchEvent::Removed(id) => drop(ready.remove(&id)),
            WatchEvent::ListStarted | WatchEvent::ListCompleted | WatchEvent::Unavailable(_) => {}
        }
    }

    /// Returns the nodes whose startup taint is to be removed now.
    fn nodes_to_untaint(&self) -> Vec<(Box<str>, TaintedNode)> {
        let [agents, proxies] = self
            .ready_pod_nodes
            .each_ref()
            .map(|pods| pods.values().map(String::as_str).collect::<BTreeSet<_>>());
        let is_due = |name: &str| agents.contains(name) && proxies.contains(name);
        let tainted = self.tainted_nodes.iter().filter(|(name, _)| is_due(name));
        tainted
            .map(|(name, node)| (name.clone(), node.clone()))
            .collect()
    }
}

/// Returns the node of a pod that is ready and not terminating.
fn node_of_ready_pod(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    let is_ready = conditions.any(|one| one.type_ == "Ready" && one.status == "True");
    let stays = pod.metadata.deletion_timestamp.is_none();
    let node = pod.spec.as_ref()?.node_name.clone()?;
    (is_ready && stays).then_some(node)
}

/// Returns the node's resource version and other taints, if the node has a taint with this key.
fn tainted_node(node: &Node, key: &str) -> Option<TaintedNode> {
    let taints = node.spec.as_ref()?.taints.as_deref()?;
    let others: Vec<_> = taints
        .iter()
        .filter(|one| one.key != key)
        .cloned()
        .collect();
    (others.len() < taints.len()).then(|| TaintedNode {
        resource_version: node.metadata.resource_version.clone().unwrap_or_default(),
        other_taints: others,
    })
}

/// Removes the taint `key` from nodes whose agent and node proxy, in `namespace`, are ready.
pub(crate) async fn remove_taints(client: Client, namespace: String, key: String) {
    let nodes = Api::<Node>::all(client.clone());
    let pods = |labels: &str| {
        let api = Api::<Pod>::namespaced(client.clone(), &namespace);
        ObjectWatch::new(
            "Pod",
            api,
            objects::watcher_config().labels(labels),
            node_of_ready_pod,
        )
    };
    let [mut agents, mut proxies] = REQUIRED_PODS.map(pods);
    let taint = key.clone();
    let mut followed = ObjectWatch::new(
        "Node",
        nodes.clone(),
        objects::watcher_config(),
        move |node| tainted_node(node, &taint),
    );
    let mut table = TaintTable::default();
    let mut backoff = Backoff::new(WRITE_BACKOFF.0, WRITE_BACKOFF.1, 0.2);
    let mut retry_at: Option<Instant> = None;
    loop {
        tokio::select! {
            event = followed.next() => table.on_node(event),
            event = agents.next() => table.on_pod(0, event),
            event = proxies.next() => table.on_pod(1, event),
            () = tokio::time::sleep_until(retry_at.unwrap_or_else(Instant::now)), if retry_at.is_some() => {
                retry_at = None;
            }
        }
        if retry_at.is_some() {
            continue;
        }
        for (name, node) in table.nodes_to_untaint() {
            // The write of a node that has changed meanwhile fails, and is planned again.
            let patch = json!({
                "metadata": {"resourceVersion": node.resource_version},
                "spec": {"taints": node.other_taints},
            });
            let params = PatchParams::default();
            match nodes.patch(&name, &params, &Patch::Merge(&patch)).await {
                Ok(_) => {
                    tracing::info!(node = %name, taint = key, "agent and node proxy are ready: the taint is removed");
                    table.tainted_nodes.remove(&name);
                    backoff.reset();
                }
                Err(error) => {
                    let error = ErrorChain(&error);
                    tracing::warn!(node = %name, taint = key, %error, "cannot remove the taint of a node; trying again");
                    retry_at = Some(Instant::now() + backoff.next_delay(rand::random()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const KEY: &str = "cni.istio.io/not-ready";

    fn id(name: &str) -> ObjectId {
        ObjectId {
            namespace: "".into(),
            name: name.into(),
            uid: name.into(),
        }
    }

    fn node(taints: Value) -> Option<TaintedNode> {
        let node = json!({"metadata": {"resourceVersion": "7"}, "spec": {"taints": taints}});
        tainted_node(&serde_json::from_value(node).unwrap(), KEY)
    }

    fn due_nodes(table: &TaintTable) -> Vec<String> {
        let due = table.nodes_to_untaint().into_iter();
        due.map(|(name, _)| name.to_string()).collect()
    }

    #[test]
    fn taint_is_removed_when_both_pods_are_ready() {
        let mut table = TaintTable::default();
        let of = |name| {
            WatchEvent::Object(
                id(name),
                node(json!([{"key": KEY, "effect": "NoSchedule"}])).unwrap(),
            )
        };
        table.on_node(of("n1"));
        table.on_node(of("n2"));
        let ready = |pod, node: &str| WatchEvent::Object(id(pod), node.to_owned());
        table.on_pod(0, ready("agent-1", "n1"));
        table.on_pod(1, ready("proxy-2", "n2"));
        assert!(due_nodes(&table).is_empty());
        table.on_pod(1, ready("proxy-1", "n1"));
        assert_eq!(due_nodes(&table), ["n1"]);
        table.on_pod(0, WatchEvent::Removed(id("agent-1")));
        assert!(due_nodes(&table).is_empty());
        table.on_pod(0, ready("agent-2", "n2"));
        assert_eq!(due_nodes(&table), ["n2"]);
        table.on_node(WatchEvent::Removed(id("n2")));
        assert!(due_nodes(&table).is_empty());
    }

    #[test]
    fn other_taints_are_kept() {
        let other = json!({"key": "dedicated", "value": "gpu", "effect": "NoSchedule"});
        let both = node(json!([{"key": KEY, "effect": "NoExecute"}, other])).unwrap();
        assert_eq!(json!(both.other_taints), json!([other]));
        assert_eq!(both.resource_version, "7");
        assert_eq!(node(json!([other])), None);
        assert_eq!(node(Value::Null), None);
    }

    #[test]
    fn terminating_and_unready_pods_do_not_count() {
        let pod = |ready: &str, leaves: bool| {
            let mut pod = json!({
                "metadata": {"name": "p"}, "spec": {"nodeName": "n1", "containers": []},
                "status": {"conditions": [{"type": "Ready", "status": ready}]},
            });
            if leaves {
                pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            node_of_ready_pod(&serde_json::from_value(pod).unwrap())
        };
        assert_eq!(pod("True", false).as_deref(), Some("n1"));
        assert_eq!(pod("False", false), None);
        assert_eq!(pod("True", true), None);
    }
}
