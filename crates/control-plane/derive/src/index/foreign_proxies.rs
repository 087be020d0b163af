//! Tracks the nodes on which a node proxy of another implementation, such as ztunnel, runs.

use crate::{
    index::{Index, change::Change},
    objects::pod::PodInput,
};

impl Index {
    /// Updates the nodes with a node proxy of another implementation after a change of a pod, and marks as stale the
    /// Gateways if the pod is such a proxy or runs on such a node.
    pub(crate) fn update_foreign_proxies(&mut self, change: &Change<'_, PodInput>) {
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
            self.mark_all_gateways_stale();
            return;
        }
        let mut pods = change.both_versions();
        if pods.any(|pod| self.view.foreign_proxies.contains_key(&pod.node)) {
            self.mark_all_gateways_stale();
        }
    }

    /// Marks as stale the Gateways if any node has a node proxy of another implementation: their waypoints may have
    /// other pods on the node.
    pub(crate) fn mark_bypassable_gateways_stale(&mut self) {
        if !self.view.foreign_proxies.is_empty() {
            self.mark_all_gateways_stale();
        }
    }
}
