//! Condition of the waypoints' GatewayClass about the cluster's release of the Gateway API. Does no IO.

use std::collections::BTreeMap;

use ambit_k8s_api::{check_release, status::DesiredCondition};
use serde_json::Value;

/// Release of the Gateway API, as the status condition `SupportedVersion` reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GatewayApiRelease {
    is_known: bool,
    message: String,
}

impl GatewayApiRelease {
    /// Reads the release from the annotations of a CRD.
    pub(crate) fn from_annotations(annotations: Option<&BTreeMap<String, String>>) -> Self {
        match check_release(annotations) {
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

    /// Reads the release from the status conditions of a GatewayClass.
    pub(crate) fn from_conditions(conditions: &[Value]) -> Option<Self> {
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

    /// Returns the status condition `SupportedVersion` of the GatewayClass.
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

    /// Logs a warning if the release of the Gateway API is unknown.
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
    fn release_condition_round_trips() {
        for release in ["v1.6.3", "v9.0.0"] {
            let annotations = [(ambit_k8s_api::BUNDLE_VERSION.to_owned(), release.to_owned())];
            let release = GatewayApiRelease::from_annotations(Some(&annotations.into()));
            let condition = release.condition(Some(1)).to_json(None);
            assert_eq!(
                GatewayApiRelease::from_conditions(&[condition]),
                Some(release)
            );
        }
        assert_eq!(GatewayApiRelease::from_conditions(&[]), None);
    }
}
