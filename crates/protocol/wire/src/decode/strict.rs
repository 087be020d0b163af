//! Strict decoding: records whose unknown fields are errors, and the substitutes for records that cannot be decoded in
//! full.

use ambit_model::{self as model, PolicyKey};
use prost::Message;

use super::error::{DecodeError, DecodeErrorReason};
use crate::unknown;

/// Error of a record that cannot be decoded in full, with its substitute.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct RecordDecodeError<T> {
    /// Decoding error, which names the field and the reason.
    pub error: DecodeError,
    /// Record that replaces the rejected record; `None` if the last good version remains in force instead.
    pub substitute: Option<Substitute<T>>,
}

/// Record that replaces one that cannot be decoded in full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Substitute<T> {
    /// Contents of the substitute.
    pub record: Box<T>,
    /// Effect of the substitute on traffic, as text for logs.
    pub effect: &'static str,
    /// Whether the record is a policy, whose substitute denies requests. A client can be configured to keep the last
    /// good version of a policy instead.
    pub is_policy: bool,
}

impl<T> RecordDecodeError<T> {
    /// Creates the error of a record that has no substitute, so that its last good version remains in force.
    pub(crate) fn without_substitute(error: DecodeError) -> Self {
        Self {
            error,
            substitute: None,
        }
    }
}

#[cfg(test)]
impl<T> RecordDecodeError<T> {
    pub(crate) fn substitute_record(self) -> T {
        *self.substitute.unwrap().record
    }
}

/// Decodes a message in full: a field that this build does not know is an error.
pub(crate) fn decode_strictly<M: Message + Default>(
    field: &'static str,
    schema: &'static unknown::Message,
    bytes: &[u8],
) -> Result<M, DecodeError> {
    let malformed = |source| DecodeError::new(field, DecodeErrorReason::Malformed(source));
    let message = M::decode(bytes).map_err(malformed)?;
    let mut unknown = None;
    schema
        .unknown_fields(bytes, &mut |field| {
            unknown.get_or_insert(field);
        })
        .map_err(malformed)?;
    match unknown {
        Some(field) => Err(DecodeError::new(
            field.message,
            DecodeErrorReason::UnknownField(field.number),
        )),
        None => Ok(message),
    }
}

/// Returns the record if its contents have the name (`namespace/name`) under which it was sent, otherwise the
/// substitute for that name.
pub(crate) fn check_resource_name<T>(
    name: &str,
    field: &'static str,
    read: Result<T, DecodeError>,
    key: impl FnOnce(&T) -> PolicyKey,
    substitute: impl FnOnce(PolicyKey, model::ArcStr) -> Substitute<T>,
) -> Result<T, RecordDecodeError<T>> {
    let named = PolicyKey::from_resource_name(name);
    let read = read.and_then(|read| match key(&read) {
        own if own == named => Ok(read),
        own => Err(DecodeError::new(
            field,
            DecodeErrorReason::PolicyNameMismatch(own),
        )),
    });
    read.map_err(|error| RecordDecodeError {
        substitute: Some(substitute(named, error.to_string().into())),
        error,
    })
}
