//! Namespaces that the mesh leaves out.

use ambit_k8s_api::selector;

use crate::{relations::discovery::Discovery, view::MeshView};

impl MeshView {
    /// Selectors of the namespaces that are seen; all are, if there are none.
    pub fn discovery_selectors(&self) -> &[selector::LabelSelector] {
        &self.discovery.selectors
    }

    /// Whether the mesh's settings leave a namespace out.
    pub(crate) fn is_left_out(&self, namespace: &str) -> bool {
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
