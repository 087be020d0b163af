//! A rule as it is understood.

use std::collections::{BTreeMap, BTreeSet};

use ambit_k8s_api::ObjectKey;
use ambit_model::{ArcStr, DestinationPolicy};

use super::subsets::SubsetInput;

/// A rule as the mesh sees it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RuleInput {
    pub(super) key: ObjectKey,
    pub(super) created: String,
    /// A host's full name, or `*.` and the end of names, or `*`.
    pub(super) host: ArcStr,
    /// Namespaces whose waypoints see it; `None` for all.
    pub(super) exported: Option<BTreeSet<ArcStr>>,
    pub(super) policy: DestinationPolicy,
    pub(super) ports: BTreeMap<u16, DestinationPolicy>,
    pub(super) subsets: BTreeMap<ArcStr, SubsetInput>,
}
