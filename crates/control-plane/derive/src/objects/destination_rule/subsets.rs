//! Parsing of the subsets of a DestinationRule.

use std::collections::BTreeMap;

use ambit_k8s_api::destination::DestinationRuleSpec;
use ambit_model::{ArcStr, DestinationPolicy};

use crate::{
    labels::Labels,
    objects::destination_rule::policy,
    problem::{FieldError, Note},
};

/// Maximum number of subsets of a rule.
const MAX_SUBSETS: usize = 256;

/// Parsed subset of a DestinationRule.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SubsetInput {
    pub(crate) labels: Labels,
    pub(crate) policy: DestinationPolicy,
    pub(crate) ports: BTreeMap<u16, DestinationPolicy>,
}

pub(crate) fn read(
    spec: &DestinationRuleSpec,
    factor: u32,
    notes: &mut Vec<Note>,
) -> Result<BTreeMap<ArcStr, SubsetInput>, FieldError> {
    let mut subsets = BTreeMap::new();
    if spec.subsets.len() > MAX_SUBSETS {
        let message = format!("{} are too many: at most {MAX_SUBSETS}", spec.subsets.len());
        return Err(FieldError::new("spec.subsets", message));
    }
    for (index, from) in spec.subsets.iter().enumerate() {
        let at = format!("spec.subsets[{index}]");
        if from.name.is_empty() {
            return Err(FieldError::new(format!("{at}.name"), "is needed"));
        }
        let of_rule = spec.traffic_policy.as_ref();
        let of_subset = from.traffic_policy.as_ref();
        let at_policy = format!("{at}.trafficPolicy");
        let (policy, ports) =
            policy::parse_subset_policy(of_rule, of_subset, &at_policy, factor, notes)?;
        let subset = SubsetInput {
            labels: from.labels.clone(),
            policy,
            ports,
        };
        if subsets.insert(ArcStr::from(&*from.name), subset).is_some() {
            let message = format!("there is another with the name {:?}", from.name);
            return Err(FieldError::new(format!("{at}.name"), message));
        }
    }
    Ok(subsets)
}

impl SubsetInput {
    pub(crate) fn policies_mut(&mut self) -> impl Iterator<Item = &mut DestinationPolicy> {
        self.ports.values_mut().chain([&mut self.policy])
    }
}
