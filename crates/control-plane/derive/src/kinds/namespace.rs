//! Namespaces: defaults for objects in them, and the network of the cluster, which a label of the root namespace names.

use ambit_k8s_api::{Namespace, Pod, labels};
use ambit_model::ArcStr;

use crate::{
    index::{Index, change::Change},
    kinds::kind::MeshKind,
    objects::namespace::NamespaceInput,
    pod_directory::PodDirectory,
    view::MeshView,
};

impl MeshKind for Namespace {
    fn on_change(index: &mut Index, change: &Change<'_, NamespaceInput>, pods: &mut PodDirectory) {
        let name = &change.key.name;
        let nothing = NamespaceInput::default();
        let old = change.old.unwrap_or(&nothing);
        let new = change.new.unwrap_or(&nothing);
        if change.old.is_none() || change.new.is_none() {
            index.mark_short_names_stale(name);
        }
        index.update_binding(change.key, old.binding.as_ref(), new.binding.as_ref());
        index.update_canary(change.key, old.canary.as_ref(), new.canary.as_ref());
        index.recompute_discovery(pods);
        // Gateways of other namespaces may allow those with certain labels.
        let other_waypoint = old.labels != new.labels;
        let other_canary = old.canary != new.canary;
        if other_waypoint || other_canary || old.traffic_distribution != new.traffic_distribution {
            index.mark_namespace_hosts_stale(name);
        }
        if other_waypoint {
            // Its labels decide which of its pods belong to the mesh.
            let objects = index.view.objects(name);
            for pod in objects
                .iter()
                .flat_map(|all| all.all_of_kind::<Pod>().values())
            {
                pods.insert(name, &pod.name, pod.facts(&index.view));
            }
            index.mark_namespace_workloads_stale(name);
            index.mark_bypassable_gateways_stale();
            if index.view.has_telemetry() {
                index.mark_all_telemetry_stale();
            }
        }
        // Gateways may have become another control plane's, or ours.
        if old.labels.get(labels::REVISION) != new.labels.get(labels::REVISION) {
            index.mark_namespace_gateways_stale(name);
        }
        if *name == index.view.config.root_namespace && index.view.network != new.network {
            index.view.network = new.network.clone();
            index.mark_entire_mesh_stale();
        }
    }
}

/// Returns the traffic distribution that a namespace's annotation sets for its services.
pub(crate) fn traffic_distribution<'a>(view: &'a MeshView, namespace: &ArcStr) -> Option<&'a str> {
    let namespaces = view.objects("")?.all_of_kind::<Namespace>();
    namespaces.get(namespace)?.traffic_distribution.as_deref()
}
