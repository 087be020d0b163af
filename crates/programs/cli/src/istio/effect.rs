//! Effect of an object with Ambit.

use ambit_k8s_api::ObjectKey;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Outcome for an object, or for one of its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Outcome {
    /// Without an effect in Ambit.
    Lapses,
    /// Followed, with a difference.
    Changes,
    /// Followed as it is.
    Works,
}

/// Effect of an object, or of one of its fields.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Effect {
    pub(crate) outcome: Outcome,
    /// Kind, namespace and name of the object.
    pub(crate) object: String,
    /// Path of the field; `.` for the object itself.
    pub(crate) field: String,
    /// Consequence with Ambit.
    pub(crate) effect: String,
    /// Advice on it; empty where there is nothing to do.
    pub(crate) advice: String,
}

impl Effect {
    pub(super) fn new(
        outcome: Outcome,
        object: &str,
        field: impl Into<String>,
        effect: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            outcome,
            object: object.to_owned(),
            field: field.into(),
            effect: effect.into(),
            advice: advice.into(),
        }
    }
}

/// Kind, namespace and name of an object of any kind.
pub(super) fn object_name(value: &Value) -> String {
    if let Ok(key) = ObjectKey::read(value) {
        return key.to_string();
    }
    let named = Named::deserialize(value).unwrap_or_default();
    let kind = named.kind.as_deref().unwrap_or("object");
    let name = named.metadata.name.as_deref().unwrap_or("without a name");
    match named.metadata.namespace {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}

/// Fields of an object that name it.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    kind: Option<String>,
    metadata: Name,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Name {
    namespace: Option<String>,
    name: Option<String>,
}
