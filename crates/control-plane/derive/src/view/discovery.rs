//! Namespaces that `discoverySelectors` exclude from the mesh.

use ambit_k8s_api::selector;

use crate::{relations::discovery::Discovery, view::MeshView};

impl MeshView {
    /// Returns the selectors of the namespaces whose objects the mesh uses; all namespaces if empty.
    pub fn discovery_selectors(&self) -> &[selector::LabelSelector] {
        &self.discovery.selectors
    }

    /// Whether `discoverySelectors` exclude a namespace.
    pub(crate) fn is_excluded(&self, namespace: &str) -> bool {
        let Discovery {
            selectors,
            selected,
        } = &self.discovery;
        !selectors.is_empty()
            && !namespace.is_empty()
            && namespace != self.config.root_namespace
            && !selected.contains(namespace)
    }
}
