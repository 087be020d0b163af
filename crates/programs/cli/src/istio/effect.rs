//! Effects that the objects of an Istio mesh have with Ambit.

use ambit_k8s_api::ObjectKey;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Outcome for an object of an Istio mesh, or for one of its fields, with Ambit; the most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Outcome {
    /// The object or field has no effect in Ambit.
    Lapses,
    /// Ambit uses the object or field, but differently from Istio.
    Changes,
    /// Ambit uses the object or field as Istio does.
    Works,
}

/// Effect of an object, or of one of its fields, with Ambit.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Effect {
    pub(crate) outcome: Outcome,
    /// Kind, namespace and name of the object.
    pub(crate) object: String,
    /// Path of the field; `.` for the object itself.
    pub(crate) field: String,
    /// Description of the effect with Ambit.
    pub(crate) effect: String,
    /// How to get the intended effect; empty if there is nothing to do.
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

/// Formats kind, namespace and name of an object of any kind.
pub(super) fn object_name(value: &Value) -> String {
    if let Ok(key) = ObjectKey::read(value) {
        return key.to_string();
    }
    let named = ObjectHeader::deserialize(value).unwrap_or_default();
    let kind = named.kind.as_deref().unwrap_or("object");
    let name = named.metadata.name.as_deref().unwrap_or("without a name");
    match named.metadata.namespace {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}

/// Kind, namespace and name in the JSON of an object of any kind.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ObjectHeader {
    kind: Option<String>,
    metadata: ObjectName,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ObjectName {
    namespace: Option<String>,
    name: Option<String>,
}
