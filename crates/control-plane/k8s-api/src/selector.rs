//! Kubernetes' label selectors.

use std::collections::BTreeMap;

pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// Whether labels match; nothing matches an operator that is not known.
pub fn matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let equal = |(key, value): (&String, &String)| labels.get(key) == Some(value);
    selector.match_labels.iter().flatten().all(equal)
        && selector
            .match_expressions
            .iter()
            .flatten()
            .all(|requirement| {
                let value = labels.get(&requirement.key);
                let listed = value.is_some_and(|value| {
                    requirement.values.iter().flatten().any(|one| one == value)
                });
                match requirement.operator.as_str() {
                    "In" => listed,
                    "NotIn" => !listed,
                    "Exists" => value.is_some(),
                    "DoesNotExist" => value.is_none(),
                    _ => false,
                }
            })
}
