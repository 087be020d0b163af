//! Nodes with a node proxy of another implementation.
//!
//! Such a proxy does not implement Ambit's rule that all connections to a pod must come through its waypoint: it
//! accepts plaintext connections, and HBONE tunnels that bypass the waypoint. The waypoint's Gateway therefore has a
//! note that lists the nodes where this concerns pods of the waypoint.
//!
//! A pod of the root namespace is such a proxy if it has the label of ztunnel and lacks the label of Ambit's chart.

use ambit_k8s_api::{ObjectKey, Pod};
use ambit_model::GatewayName;

use crate::{
    names::join_names, objects::pod::PodInput, problem::Note, relations::references::ReferenceKind,
    view::MeshView,
};

/// Label of node proxies in Istio's chart, name and value.
const ZTUNNEL_LABEL: (&str, &str) = ("app", "ztunnel");
/// Label of all objects in Ambit's chart, name and value.
const AMBIT_LABEL: (&str, &str) = ("app.kubernetes.io/part-of", "ambit");

impl MeshView {
    pub(crate) fn is_foreign_proxy(&self, pod: &PodInput) -> bool {
        let has = |(name, value)| pod.labels.get(name).is_some_and(|own| own == value);
        pod.namespace == self.config.root_namespace
            && !pod.is_terminated
            && !pod.node.is_empty()
            && has(ZTUNNEL_LABEL)
            && !has(AMBIT_LABEL)
    }

    /// Builds the note on the nodes where clients can bypass one of our waypoints; `None` if there are no such nodes.
    pub(crate) fn bypassable_nodes_note(&self, gateway: &GatewayName) -> Option<Note> {
        let serves = |key: &ObjectKey| {
            let pod = self.get::<Pod>(key).filter(|pod| !pod.uses_host_network)?;
            let pod = pod.is_published().then_some(pod)?;
            let account = Some(&pod.service_account);
            let attachment = self.waypoint_of_workload(key, &pod.labels, account);
            let is_it = attachment?.own_gateway() == Some(gateway) && !self.is_instance(pod);
            is_it.then_some(())
        };
        let nodes = self.foreign_proxies.keys().filter(|node| {
            let pods = self.references.referrers(ReferenceKind::PodNode, *node);
            pods.filter_map(serves).next().is_some()
        });
        let nodes: Vec<_> = nodes.map(ToString::to_string).collect();
        let message = format!(
            "the node proxy of {} is another implementation's, which does not route all traffic to the waypoint's pods \
             there through it: callers without a tunnel bypass its policies; run Ambit's node proxy on these nodes",
            join_names(&nodes)?
        );
        Some(Note::new(".", message))
    }
}
