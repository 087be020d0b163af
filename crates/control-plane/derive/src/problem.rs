//! Problems of objects: errors that make an object invalid, and notes on parts without the expected effect.

use std::fmt;

use ambit_k8s_api::ObjectKey;
use serde::{Serialize, Serializer};

/// Consequence of a [`Problem`] for its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The object is invalid and not used; its last valid version, if any, stays in effect.
    Error,
    /// The object is used, but a part of it does not have the expected effect.
    Warning,
}

/// Problem of one object, for its status, events and commands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Problem {
    /// Severity of the problem.
    pub severity: Severity,
    /// Key of the object.
    #[serde(serialize_with = "as_text")]
    pub object: ObjectKey,
    /// Path of the field, for instance `spec.rules[0].from[1].source.ipBlocks[0]`.
    pub field: String,
    /// Description of the problem and how to solve it.
    pub message: String,
    /// File and line of the manifest, if the object comes from one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(origin) = &self.origin {
            write!(f, "{origin}: ")?;
        }
        write!(f, "{}: {}: {}", self.object, self.field, self.message)
    }
}

/// Error in a field, which makes the whole object invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct FieldError {
    /// Path of the field.
    pub field: String,
    /// Description of the problem and how to solve it.
    pub message: String,
}

impl FieldError {
    /// Builds an error from the path of the field and a message.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            message: message.into(),
        }
    }
}

/// Note on a part of an object that does not have the expected effect.
pub(crate) type Note = FieldError;

fn as_text<S: Serializer>(key: &ObjectKey, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(key)
}
