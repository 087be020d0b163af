//! Namespaces that the mesh discovers.

use std::collections::BTreeSet;

use ambit_k8s_api::selector;
use ambit_model::ArcStr;

/// Namespaces that the mesh discovers.
#[derive(Debug, Default)]
pub(crate) struct Discovery {
    /// Selectors of namespaces; without any, the mesh discovers all.
    pub(crate) selectors: Vec<selector::LabelSelector>,
    /// Namespaces that a selector selects.
    pub(crate) selected: BTreeSet<ArcStr>,
}
