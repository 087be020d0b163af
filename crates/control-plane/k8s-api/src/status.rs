//! Conditions of objects: published ones, and those that controllers desire.

use std::time::{SystemTime, UNIX_EPOCH};

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    ConfigMap, Deployment, EndpointSlice, Namespace, Node, Pod, Secret, Service, ServiceAccount,
};

/// Status of an object, which controllers write.
pub trait Status {
    /// Returns the API version that the object was written in, as `group/version`.
    fn api_version(&self) -> &str;

    /// Returns the conditions as JSON.
    fn conditions(&self) -> Vec<Value>;
}

/// Condition in a status, with the fields that tools display; all are optional.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub type_: String,
    /// Status of the condition: `True`, `False` or `Unknown`.
    pub status: String,
    /// Machine-readable reason, in CamelCase.
    pub reason: String,
    /// Message of the condition, for people.
    pub message: String,
    /// Generation (`metadata.generation`) of the object that the condition is about.
    pub observed_generation: Option<i64>,
}

/// Condition that a controller desires an object to have.
#[derive(Clone, Copy, Debug)]
pub struct DesiredCondition<'a> {
    /// Type of the condition.
    pub type_: &'a str,
    /// Whether the status is `True`; otherwise it is `False`.
    pub is_true: bool,
    /// Machine-readable reason, in CamelCase.
    pub reason: &'a str,
    /// Message of the condition, for people.
    pub message: &'a str,
    /// Generation (`metadata.generation`) of the object that the condition is about.
    pub generation: Option<i64>,
}

impl DesiredCondition<'_> {
    fn status(&self) -> &'static str {
        if self.is_true { "True" } else { "False" }
    }

    /// Returns whether a published condition equals this one, regardless of its transition time. The published
    /// generation may be a string.
    pub fn is_published(&self, published: &Value) -> bool {
        let text = |field: &str| text_field(published, field).unwrap_or_default();
        let generation = published.get("observedGeneration").and_then(|value| {
            let text = value.as_str().and_then(|text| text.parse().ok());
            value.as_i64().or(text)
        });
        text("status") == self.status()
            && text("reason") == self.reason
            && text("message") == self.message
            && generation == self.generation
    }

    /// Returns the condition as JSON. Keeps the transition time of the published condition if the status is unchanged.
    pub fn to_json(&self, published: Option<&Value>) -> Value {
        let status = self.status();
        let since = published
            .filter(|published| text_field(published, "status") == Some(status))
            .and_then(|published| text_field(published, "lastTransitionTime"));
        let mut condition = json!({
            "type": self.type_,
            "status": status,
            "reason": self.reason,
            "message": self.message,
            "lastTransitionTime": since.map_or_else(now, str::to_owned),
        });
        if let (Some(generation), Some(fields)) = (self.generation, condition.as_object_mut()) {
            fields.insert("observedGeneration".to_owned(), generation.into());
        }
        condition
    }
}

fn text_field<'a>(condition: &'a Value, field: &str) -> Option<&'a str> {
    condition.get(field)?.as_str()
}

/// Returns the current time in whole seconds, as in the Kubernetes API.
fn now() -> String {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since_epoch.as_secs())
        .ok()
        .and_then(|seconds| Timestamp::from_second(seconds).ok())
        .unwrap_or_default()
        .to_string()
}

/// Returns the conditions of a status in JSON.
pub fn conditions(status: &Value) -> Vec<Value> {
    let conditions = status.get("conditions").and_then(Value::as_array);
    conditions.cloned().unwrap_or_default()
}

/// Implements [`Status`] without conditions, for kinds whose conditions are not used.
macro_rules! without_conditions {
    ($($kind:ident)*) => {
        $(impl Status for $kind {
            fn api_version(&self) -> &str {
                <Self as k8s_openapi::Resource>::API_VERSION
            }

            fn conditions(&self) -> Vec<Value> {
                Vec::new()
            }
        })*
    };
}

without_conditions! { Namespace Node ServiceAccount ConfigMap Secret Pod Deployment EndpointSlice }

impl Status for Service {
    fn api_version(&self) -> &str {
        <Self as k8s_openapi::Resource>::API_VERSION
    }

    fn conditions(&self) -> Vec<Value> {
        let status = self.status.as_ref();
        let conditions = status.and_then(|status| status.conditions.as_ref());
        let json = |condition| serde_json::to_value(condition).ok();
        conditions.into_iter().flatten().filter_map(json).collect()
    }
}
