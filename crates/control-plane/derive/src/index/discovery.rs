//! Updates the namespaces that `discoverySelectors` exclude. Objects of excluded namespaces stay stored and are hidden:
//! no records are derived from them, and references to them do not resolve. Their pods do not belong to the mesh: no
//! node proxy gets a certificate for them.
//!
//! The root namespace, and the empty namespace of cluster-scoped objects, are never excluded.

use std::collections::BTreeSet;

use ambit_k8s_api::{Namespace, ObjectKey, Pod, selector};

use crate::{
    index::{Index, render_unit::RenderUnit},
    pod_directory::PodDirectory,
    relations::discovery::Discovery,
    view::MeshView,
};

impl MeshView {
    /// Updates in the pod directory which pods belong to the mesh; pods of excluded namespaces do not.
    fn enrol_pods(&self, pods: &mut PodDirectory) {
        for (namespace, objects) in &self.namespaces {
            for pod in objects.all_of_kind::<Pod>().values() {
                pods.insert(namespace, &pod.name, pod.facts(self));
            }
        }
    }
}

impl Index {
    /// Recomputes the selected namespaces, after a change of `discoverySelectors` or of a namespace's labels.
    pub(crate) fn recompute_discovery(&mut self, pods: &mut PodDirectory) {
        let selectors = self
            .view
            .settings()
            .map(|one| one.discovery_selectors.clone());
        let selectors = selectors.unwrap_or_default();
        if selectors.is_empty() && self.view.discovery.selectors.is_empty() {
            return;
        }
        let mut discovery = Discovery {
            selectors,
            selected: BTreeSet::new(),
        };
        let namespaces = self
            .view
            .objects("")
            .map(|all| all.all_of_kind::<Namespace>());
        for (name, namespace) in namespaces.into_iter().flatten() {
            if selector::selects_namespace(&discovery.selectors, name, &namespace.labels) {
                discovery.selected.insert(name.clone());
            }
        }
        let was_any = !self.view.discovery.selectors.is_empty();
        let is_same = was_any != discovery.selectors.is_empty()
            && self.view.discovery.selected == discovery.selected;
        self.view.discovery = discovery;
        if !is_same {
            self.mark_all_records_stale();
            self.view.enrol_pods(pods);
        }
    }

    /// Marks the records of every object and every host as stale.
    fn mark_all_records_stale(&mut self) {
        let objects = self.view.namespaces.iter();
        let keys: Vec<ObjectKey> = objects
            .flat_map(|(namespace, objects)| objects.keys(namespace))
            .collect();
        self.stale_units
            .extend(keys.into_iter().map(RenderUnit::Object));
        self.mark_entire_mesh_stale();
        self.mark_strict_policy_stale();
    }
}
