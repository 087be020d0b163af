//! What objects say of their own state, for those who write conditions on them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    ConfigMap, Deployment, EndpointSlice, Namespace, Node, Pod, Secret, Service, ServiceAccount,
};

/// The part of an object that controllers write.
pub trait Status {
    /// Version of the API that the object was written in, as `group/version`.
    fn api_version(&self) -> &str;

    /// Returns the conditions as JSON.
    fn conditions(&self) -> Vec<Value>;
}

/// Condition that a controller wrote, as far as it is shown. Nothing of it is required.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Reason in one word.
    pub reason: String,
    /// Reason for people.
    pub message: String,
    /// Generation of the object that the condition is about.
    pub observed_generation: Option<i64>,
}

/// The conditions in a status in JSON form.
pub fn conditions(status: &Value) -> Vec<Value> {
    let conditions = status.get("conditions").and_then(Value::as_array);
    conditions.cloned().unwrap_or_default()
}

/// Kinds whose conditions are not used.
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
