//! Node proxies of another implementation, beside our waypoints.
//!
//! Such a proxy knows nothing of the extension by which everything to a pod has to come through its waypoint: it lets
//! pass what callers without a tunnel send there, and what a tunnel brings that did not come through the waypoint. So a
//! waypoint names the nodes where that concerns pods of its own.
//!
//! A pod of the mesh's namespace with the label of node proxies and without that of Ambit's chart is such a proxy.

use std::collections::{BTreeMap, BTreeSet};

use ambit_k8s_api::{ObjectKey, Pod};
use ambit_model::{ArcStr, GatewayName};

use super::{
    Index, MeshView,
    instances::listed,
    kind::{Change, MeshKind},
    references::Edge,
};
use crate::problem::Note;

/// A pod as understood.
type PodInput = <Pod as MeshKind>::Input;

/// The label of node proxies, and its value.
const NODE_PROXY: (&str, &str) = ("app", "ztunnel");
/// The label of what Ambit's chart makes, and its value.
const OURS: (&str, &str) = ("app.kubernetes.io/part-of", "ambit");

/// Pods that are node proxies of another implementation, by node.
pub(super) type ForeignProxies = BTreeMap<ArcStr, BTreeSet<ObjectKey>>;

impl MeshView {
    fn is_foreign_proxy(&self, pod: &PodInput) -> bool {
        let has = |(name, value)| pod.labels.get(name).is_some_and(|own| own == value);
        pod.namespace == self.config.root_namespace
            && !pod.terminated
            && !pod.node.is_empty()
            && has(NODE_PROXY)
            && !has(OURS)
    }

    /// The nodes on which callers can pass a waypoint of ours.
    pub(crate) fn passed_on_nodes(&self, gateway: &GatewayName) -> Option<Note> {
        let serves = |key: &ObjectKey| {
            let pod = self.get::<Pod>(key).filter(|pod| !pod.host_network)?;
            let pod = pod.is_published().then_some(pod)?;
            let account = Some(&pod.service_account);
            let attachment = self.waypoint_of_workload(key, &pod.labels, account);
            let is_it = attachment?.ours() == Some(gateway) && !self.is_instance(pod);
            is_it.then_some(())
        };
        let nodes = self.foreign_proxies.keys().filter(|node| {
            let pods = self.references.of(Edge::OnNode, *node);
            pods.filter_map(serves).next().is_some()
        });
        let nodes: Vec<_> = nodes.map(ToString::to_string).collect();
        let message = format!(
            "the node proxy of {} is another implementation's, which does not route all traffic to the waypoint's pods \
             there through it: callers without a tunnel bypass its policies; run Ambit's node proxy on these nodes",
            listed(&nodes)?
        );
        Some(Note::new(".", message))
    }
}

impl Index {
    /// A pod is as it is now: a node proxy, or one that is served by it.
    pub(crate) fn follow_proxies(&mut self, change: &Change<'_, PodInput>) {
        let node_of = |pod: Option<&PodInput>| {
            let proxy = pod.filter(|pod| self.view.is_foreign_proxy(pod));
            proxy.map(|pod| pod.node.clone())
        };
        let (old, new) = (node_of(change.old), node_of(change.new));
        if old != new {
            if let Some(node) = old
                && let Some(proxies) = self.view.foreign_proxies.get_mut(&node)
            {
                proxies.remove(change.key);
                if proxies.is_empty() {
                    self.view.foreign_proxies.remove(&node);
                }
            }
            if let Some(node) = new {
                let proxies = self.view.foreign_proxies.entry(node).or_default();
                proxies.insert(change.key.clone());
            }
            self.mark_gateways();
            return;
        }
        let mut pods = change.both();
        if pods.any(|pod| self.view.foreign_proxies.contains_key(&pod.node)) {
            self.mark_gateways();
        }
    }

    /// Other waypoints may have pods on nodes of such proxies.
    pub(crate) fn mark_passed_gateways(&mut self) {
        if !self.view.foreign_proxies.is_empty() {
            self.mark_gateways();
        }
    }
}
