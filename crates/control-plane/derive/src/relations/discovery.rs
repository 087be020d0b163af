//! Namespaces that the mesh discovers.

use std::collections::BTreeSet;

use ambit_k8s_api::selector;
use ambit_model::ArcStr;

/// Which namespaces are seen.
#[derive(Debug, Default)]
pub(crate) struct Discovery {
    /// All namespaces, if there are none.
    pub(crate) selectors: Vec<selector::LabelSelector>,
    /// Namespaces that one of the selectors selects.
    pub(crate) selected: BTreeSet<ArcStr>,
}
