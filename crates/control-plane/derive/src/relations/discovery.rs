//! Namespaces that `discoverySelectors` select.

use std::collections::BTreeSet;

use ambit_k8s_api::selector;
use ambit_model::ArcStr;

/// Namespaces whose objects the mesh uses (`discoverySelectors`).
#[derive(Debug, Default)]
pub(crate) struct Discovery {
    /// Label selectors of namespaces; if empty, the mesh uses all namespaces.
    pub(crate) selectors: Vec<selector::LabelSelector>,
    /// Namespaces that at least one selector matches.
    pub(crate) selected: BTreeSet<ArcStr>,
}
