//! Condition of the class of waypoints about the cluster's release of the Gateway API. Pure.

use std::collections::BTreeMap;

use ambit_k8s_api::{known_release, status::DesiredCondition};
use serde_json::Value;

/// The condition `SupportedVersion`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Release {
    is_known: bool,
    message: String,
}

impl Release {
    /// Of a definition with these annotations.
    pub(crate) fn of(annotations: Option<&BTreeMap<String, String>>) -> Self {
        match known_release(annotations) {
            Ok(release) => Self {
                is_known: true,
                message: format!("the definitions are those of {release}"),
            },
            Err(unknown) => Self {
                is_known: false,
                message: unknown.to_string(),
            },
        }
    }

    /// Release in the conditions of a class.
    pub(crate) fn read(conditions: &[Value]) -> Option<Self> {
        let text = |one: &Value, field: &str| -> String {
            let text = one.get(field).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        let mut conditions = conditions.iter();
        let condition = conditions.find(|one| text(one, "type") == "SupportedVersion")?;
        Some(Self {
            is_known: text(condition, "status") == "True",
            message: text(condition, "message"),
        })
    }

    /// The condition of the class.
    pub(crate) fn condition(&self, generation: Option<i64>) -> DesiredCondition<'_> {
        DesiredCondition {
            type_: "SupportedVersion",
            is_true: self.is_known,
            reason: match self.is_known {
                true => "SupportedVersion",
                false => "UnsupportedVersion",
            },
            message: &self.message,
            generation,
        }
    }

    /// For the log, if it is not known.
    pub(crate) fn warn(&self) {
        if !self.is_known {
            tracing::warn!("{}", self.message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        for release in ["v1.6.3", "v9.0.0"] {
            let annotations = [(ambit_k8s_api::BUNDLE_VERSION.to_owned(), release.to_owned())];
            let release = Release::of(Some(&annotations.into()));
            let condition = release.condition(Some(1)).to_json(None);
            assert_eq!(Release::read(&[condition]), Some(release));
        }
        assert_eq!(Release::read(&[]), None);
    }
}
