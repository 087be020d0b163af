//! What is wrong with objects.

use std::fmt;

use ambit_k8s_api::ObjectKey;
use serde::{Serialize, Serializer};

/// How bad a [`Problem`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The object is not used as it is; its last good state, if any, stays in force.
    Error,
    /// The object is used, but not all of it has the effect one might expect.
    Warning,
}

/// Something wrong with one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Problem {
    /// Severity of the problem.
    pub severity: Severity,
    /// Key of the object.
    #[serde(serialize_with = "as_text")]
    pub object: ObjectKey,
    /// Path of the field, for instance `spec.rules[0].from[1].source.ipBlocks[0]`.
    pub field: String,
    /// Problem, and how to solve it.
    pub message: String,
    /// File and line, where known.
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

/// A field that makes its object unusable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct FieldError {
    /// Path of the field.
    pub field: String,
    /// Problem, and how to solve it.
    pub message: String,
}

impl FieldError {
    /// Builds an error.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            message: message.into(),
        }
    }
}

/// A part of an object that has not the effect one might expect.
pub(crate) type Note = FieldError;

fn as_text<S: Serializer>(key: &ObjectKey, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(key)
}
