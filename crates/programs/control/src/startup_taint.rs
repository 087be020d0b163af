//! Nodes that register with a taint, so that no pod starts on them before the mesh can capture it: the taint
//! is taken off when an agent and a node proxy are ready there. By the leader only.
//!
//! The taint and the labels are those of Istio's node untaint controller.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ambit_kube_kit::watch::{self as objects, ObjectId, Watch, WatchEvent};
use ambit_rt::{Backoff, ErrorChain};
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::time::Instant;

/// Labels by which the pods are found that a node has to have, ready.
const NEEDED: [&str; 2] = ["k8s-app=istio-cni-node", "app=ztunnel"];
/// First and longest pause after a write that failed.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// A node that has the taint: its version, and its other taints.
#[derive(Clone, Debug, PartialEq)]
struct Tainted {
    version: String,
    others: Vec<Taint>,
}

/// State of nodes and pods. Pure.
#[derive(Debug, Default)]
struct Board {
    tainted: BTreeMap<Box<str>, Tainted>,
    /// Ready pods and their nodes, for each of [`NEEDED`].
    ready: [BTreeMap<ObjectId, String>; 2],
}

impl Board {
    fn node(&mut self, event: WatchEvent<Tainted>) {
        match event {
            WatchEvent::Object(id, node) => drop(self.tainted.insert(id.name, node)),
            WatchEvent::Gone(id) => drop(self.tainted.remove(&id.name)),
            WatchEvent::Listing | WatchEvent::Listed | WatchEvent::Away(_) => {}
        }
    }

    fn pod(&mut self, which: usize, event: WatchEvent<String>) {
        let Some(ready) = self.ready.get_mut(which) else {
            return;
        };
        match event {
            WatchEvent::Object(id, node) => drop(ready.insert(id, node)),
            WatchEvent::Gone(id) => drop(ready.remove(&id)),
            WatchEvent::Listing | WatchEvent::Listed | WatchEvent::Away(_) => {}
        }
    }

    /// The nodes whose taint is to go.
    fn due(&self) -> Vec<(Box<str>, Tainted)> {
        let [agents, proxies] = self
            .ready
            .each_ref()
            .map(|pods| pods.values().map(String::as_str).collect::<BTreeSet<_>>());
        let is_due = |name: &str| agents.contains(name) && proxies.contains(name);
        let tainted = self.tainted.iter().filter(|(name, _)| is_due(name));
        tainted
            .map(|(name, node)| (name.clone(), node.clone()))
            .collect()
    }
}

/// Returns the node of a pod that is ready and not terminating.
fn ready_on(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    let is_ready = conditions.any(|one| one.type_ == "Ready" && one.status == "True");
    let stays = pod.metadata.deletion_timestamp.is_none();
    let node = pod.spec.as_ref()?.node_name.clone()?;
    (is_ready && stays).then_some(node)
}

/// Returns a node's taint of that key.
fn tainted(node: &Node, key: &str) -> Option<Tainted> {
    let taints = node.spec.as_ref()?.taints.as_deref()?;
    let others: Vec<_> = taints
        .iter()
        .filter(|one| one.key != key)
        .cloned()
        .collect();
    (others.len() < taints.len()).then(|| Tainted {
        version: node.metadata.resource_version.clone().unwrap_or_default(),
        others,
    })
}

/// Removes the taint `key` from nodes whose agent and proxy, in `namespace`, are ready.
pub(crate) async fn lift(client: Client, namespace: String, key: String) {
    let nodes = Api::<Node>::all(client.clone());
    let pods = |labels: &str| {
        let api = Api::<Pod>::namespaced(client.clone(), &namespace);
        Watch::new("Pod", api, objects::config().labels(labels), ready_on)
    };
    let [mut agents, mut proxies] = NEEDED.map(pods);
    let taint = key.clone();
    let mut followed = Watch::new("Node", nodes.clone(), objects::config(), move |node| {
        tainted(node, &taint)
    });
    let mut board = Board::default();
    let mut backoff = Backoff::new(PAUSE.0, PAUSE.1, 0.2);
    let mut retry_at: Option<Instant> = None;
    loop {
        tokio::select! {
            event = followed.next() => board.node(event),
            event = agents.next() => board.pod(0, event),
            event = proxies.next() => board.pod(1, event),
            () = tokio::time::sleep_until(retry_at.unwrap_or_else(Instant::now)), if retry_at.is_some() => {
                retry_at = None;
            }
        }
        if retry_at.is_some() {
            continue;
        }
        for (name, node) in board.due() {
            // A node that has changed meanwhile is refused, and looked at again.
            let patch = json!({
                "metadata": {"resourceVersion": node.version},
                "spec": {"taints": node.others},
            });
            let params = PatchParams::default();
            match nodes.patch(&name, &params, &Patch::Merge(&patch)).await {
                Ok(_) => {
                    tracing::info!(node = %name, taint = key, "agent and node proxy are ready: the taint is removed");
                    board.tainted.remove(&name);
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

    fn node(taints: Value) -> Option<Tainted> {
        let node = json!({"metadata": {"resourceVersion": "7"}, "spec": {"taints": taints}});
        tainted(&serde_json::from_value(node).unwrap(), KEY)
    }

    fn due(board: &Board) -> Vec<String> {
        let due = board.due().into_iter();
        due.map(|(name, _)| name.to_string()).collect()
    }

    #[test]
    fn a_taint_goes_when_both_are_ready_on_its_node() {
        let mut board = Board::default();
        let of = |name| {
            WatchEvent::Object(
                id(name),
                node(json!([{"key": KEY, "effect": "NoSchedule"}])).unwrap(),
            )
        };
        board.node(of("n1"));
        board.node(of("n2"));
        let ready = |pod, node: &str| WatchEvent::Object(id(pod), node.to_owned());
        board.pod(0, ready("agent-1", "n1"));
        board.pod(1, ready("proxy-2", "n2"));
        assert!(due(&board).is_empty());
        board.pod(1, ready("proxy-1", "n1"));
        assert_eq!(due(&board), ["n1"]);
        board.pod(0, WatchEvent::Gone(id("agent-1")));
        assert!(due(&board).is_empty());
        board.pod(0, ready("agent-2", "n2"));
        assert_eq!(due(&board), ["n2"]);
        board.node(WatchEvent::Gone(id("n2")));
        assert!(due(&board).is_empty());
    }

    #[test]
    fn other_taints_stay() {
        let other = json!({"key": "dedicated", "value": "gpu", "effect": "NoSchedule"});
        let both = node(json!([{"key": KEY, "effect": "NoExecute"}, other])).unwrap();
        assert_eq!(json!(both.others), json!([other]));
        assert_eq!(both.version, "7");
        assert_eq!(node(json!([other])), None);
        assert_eq!(node(Value::Null), None);
    }

    #[test]
    fn a_pod_counts_if_it_is_ready_and_stays() {
        let pod = |ready: &str, leaves: bool| {
            let mut pod = json!({
                "metadata": {"name": "p"}, "spec": {"nodeName": "n1", "containers": []},
                "status": {"conditions": [{"type": "Ready", "status": ready}]},
            });
            if leaves {
                pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            ready_on(&serde_json::from_value(pod).unwrap())
        };
        assert_eq!(pod("True", false).as_deref(), Some("n1"));
        assert_eq!(pod("False", false), None);
        assert_eq!(pod("True", true), None);
    }
}
