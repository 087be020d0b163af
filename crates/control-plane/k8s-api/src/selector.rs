//! Evaluation and strict parsing of Kubernetes label selectors.

use std::collections::BTreeMap;

use serde::Deserialize as _;
use serde_json::Value;

use crate::labels::NAMESPACE_NAME;

pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// Returns whether labels match a label selector; a requirement with an unknown operator matches nothing.
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

/// Returns whether one of the selectors selects a namespace; without selectors, all namespaces are
/// selected.
pub fn selects_namespace(
    selectors: &[LabelSelector],
    name: &str,
    labels: &BTreeMap<String, String>,
) -> bool {
    if selectors.is_empty() {
        return true;
    }
    let mut labels = labels.clone();
    // Kubernetes sets the label; manifests need not have it.
    labels.insert(NAMESPACE_NAME.to_owned(), name.to_owned());
    selectors.iter().any(|selector| matches(selector, &labels))
}

/// Reason why a label selector is invalid.
#[derive(Debug, thiserror::Error)]
pub enum InvalidSelector {
    /// The selector has a field whose meaning is unknown.
    #[error("has the unknown field {0:?}; selectors have matchLabels and matchExpressions")]
    UnknownField(String),
    /// The value cannot be deserialized as a selector.
    #[error("is not a label selector: {0}")]
    InvalidValue(#[from] serde_json::Error),
    /// A requirement of the selector cannot be evaluated.
    #[error(
        "requires {operator:?} of the label {key:?}: In and NotIn need values, Exists and DoesNotExist have none"
    )]
    InvalidRequirement {
        /// Label key of the requirement.
        key: String,
        /// Operator of the requirement.
        operator: String,
    },
}

/// Parses a selector strictly: a misspelt one would select other objects than intended.
///
/// # Errors
///
/// When a field or operator is unknown, or a value is missing.
pub fn read(value: &Value) -> Result<LabelSelector, InvalidSelector> {
    let known = ["matchLabels", "matchExpressions"];
    let mut fields = value.as_object().into_iter().flatten();
    if let Some((field, _)) = fields.find(|(field, _)| !known.contains(&field.as_str())) {
        return Err(InvalidSelector::UnknownField(field.clone()));
    }
    let selector = LabelSelector::deserialize(value)?;
    let mut requirements = selector.match_expressions.iter().flatten();
    let wrong = requirements.find(|requirement| {
        let values = requirement.values.as_ref();
        let has_values = values.is_some_and(|all| !all.is_empty());
        match requirement.operator.as_str() {
            "In" | "NotIn" => !has_values,
            "Exists" | "DoesNotExist" => has_values,
            _ => true,
        }
    });
    match wrong {
        Some(requirement) => Err(InvalidSelector::InvalidRequirement {
            key: requirement.key.clone(),
            operator: requirement.operator.clone(),
        }),
        None => Ok(selector),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_are_parsed_strictly() {
        let requires = |of: Value| json!({"matchExpressions": [of]});
        for value in [
            json!({}),
            json!({"matchLabels": {"a": "b"}}),
            requires(json!({"key": "a", "operator": "In", "values": ["b"]})),
            requires(json!({"key": "a", "operator": "Exists"})),
        ] {
            assert!(read(&value).is_ok(), "{value}");
        }
        for (value, why) in [
            (json!({"matchlabels": {"a": "b"}}), "matchlabels"),
            (json!({"matchLabels": ["a"]}), "is not a label selector"),
            (json!("a"), "is not a label selector"),
            (
                requires(json!({"key": "a", "operator": "in", "values": ["b"]})),
                "\"in\"",
            ),
            (
                requires(json!({"key": "a", "operator": "NotIn"})),
                "need values",
            ),
            (
                requires(json!({"key": "a", "operator": "Exists", "values": ["b"]})),
                "have none",
            ),
        ] {
            let refused = read(&value).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
    }
}
