//! Node proxies of another implementation, beside our waypoints.
//!
//! Such a proxy knows nothing of the extension by which everything to a pod has to come through its waypoint: it lets
//! pass what callers without a tunnel send there, and what a tunnel brings that did not come through the waypoint. So a
//! waypoint names the nodes where that concerns pods of its own.
//!
//! A pod of the mesh's namespace with the label of node proxies and without that of Ambit's chart is such a proxy.

use ambit_k8s_api::{ObjectKey, Pod};
use ambit_model::GatewayName;

use crate::{
    names::listed, objects::pod::PodInput, problem::Note, relations::references::Edge,
    view::MeshView,
};

/// The label of node proxies, and its value.
const NODE_PROXY: (&str, &str) = ("app", "ztunnel");
/// The label of what Ambit's chart makes, and its value.
const OURS: (&str, &str) = ("app.kubernetes.io/part-of", "ambit");

impl MeshView {
    pub(crate) fn is_foreign_proxy(&self, pod: &PodInput) -> bool {
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
