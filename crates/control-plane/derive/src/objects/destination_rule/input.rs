//! Parsed DestinationRule object.

use std::collections::{BTreeMap, BTreeSet};

use ambit_k8s_api::ObjectKey;
use ambit_model::{ArcStr, DestinationPolicy};

use crate::objects::destination_rule::subsets::SubsetInput;

/// Parsed DestinationRule object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DestinationRuleInput {
    pub(crate) key: ObjectKey,
    pub(crate) created: String,
    /// Full host name, a wildcard (`*.` and a suffix), or `*`.
    pub(crate) host: ArcStr,
    /// Namespaces whose waypoints apply the rule (`exportTo`); `None` for all.
    pub(crate) export_to: Option<BTreeSet<ArcStr>>,
    pub(crate) policy: DestinationPolicy,
    pub(crate) ports: BTreeMap<u16, DestinationPolicy>,
    pub(crate) subsets: BTreeMap<ArcStr, SubsetInput>,
}
