//! A rule as it is understood.

use std::collections::{BTreeMap, BTreeSet};

use ambit_k8s_api::ObjectKey;
use ambit_model::{ArcStr, DestinationPolicy};

use crate::objects::destination_rule::subsets::SubsetInput;

/// A rule as the mesh sees it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RuleInput {
    pub(crate) key: ObjectKey,
    pub(crate) created: String,
    /// A host's full name, or `*.` and the end of names, or `*`.
    pub(crate) host: ArcStr,
    /// Namespaces whose waypoints see it; `None` for all.
    pub(crate) exported: Option<BTreeSet<ArcStr>>,
    pub(crate) policy: DestinationPolicy,
    pub(crate) ports: BTreeMap<u16, DestinationPolicy>,
    pub(crate) subsets: BTreeMap<ArcStr, SubsetInput>,
}
