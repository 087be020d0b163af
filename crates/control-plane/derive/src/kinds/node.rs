//! Nodes: a change marks as stale the pods on the node, whose locality is the node's.

use ambit_k8s_api::Node;
use ambit_model::{ArcStr, Locality};

use crate::{
    index::{Index, change::Change},
    kinds::kind::MeshKind,
    pod_directory::PodDirectory,
    relations::references::ReferenceKind,
    view::MeshView,
};

impl MeshKind for Node {
    fn on_change(index: &mut Index, change: &Change<'_, Locality>, _: &mut PodDirectory) {
        let pods = index
            .view
            .references
            .referrers(ReferenceKind::PodNode, &change.key.name);
        let pods: Vec<_> = pods.cloned().collect();
        for pod in pods {
            index.mark_object_stale(pod);
        }
    }
}

/// Returns the locality of a node; empty if the node is unknown.
pub(crate) fn locality(view: &MeshView, name: &ArcStr) -> Locality {
    let nodes = view
        .objects("")
        .map(|objects| objects.all_of_kind::<Node>());
    let locality = nodes.and_then(|nodes| nodes.get(name));
    locality.cloned().unwrap_or_default()
}
