//! Error of a record that cannot be decoded, with the field and the reason.

use ambit_model as model;

/// Error of a record that cannot be decoded: the field and the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct DecodeError {
    field: &'static str,
    reason: DecodeErrorReason,
}

/// Reason why a field cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DecodeErrorReason {
    #[error("not the protobuf message it should be: {0}")]
    Malformed(#[source] prost::DecodeError),
    #[error("is missing")]
    MissingField,
    #[error("an address of {0} bytes; 4 or 16 are possible")]
    AddressLength(usize),
    #[error("a prefix of {0} bits is too long for the address")]
    PrefixLength(u32),
    #[error("{0:?} is no prefix of addresses")]
    InvalidPrefix(String),
    #[error("unknown value {0}")]
    UnknownValue(i32),
    #[error("{0} is not a port")]
    InvalidPort(u32),
    #[error("{0}")]
    InvalidName(#[source] model::ParseNameError),
    #[error("{0}")]
    InvalidIdentity(#[source] model::ParseIdentityError),
    #[error("{0} is not a status of an error, 400 to 599")]
    NotErrorStatus(u32),
    #[error("{0} is no status that a request could be answered with")]
    InvalidFaultStatus(u32),
    #[error("legacy Istio mTLS is not supported")]
    LegacyTunnel,
    #[error("a match without a value")]
    EmptyMatch,
    #[error("is empty")]
    EmptyField,
    #[error("field {0} is unknown")]
    UnknownField(u32),
    #[error("the extension {0:?} is unknown")]
    UnknownExtension(String),
    #[error("names {0}, not the policy that it was sent as")]
    PolicyNameMismatch(model::PolicyKey),
}

impl DecodeError {
    pub(crate) fn new(field: &'static str, reason: DecodeErrorReason) -> Self {
        Self { field, reason }
    }

    pub(crate) fn missing(field: &'static str) -> Self {
        Self::new(field, DecodeErrorReason::MissingField)
    }

    /// Returns the path of the field that cannot be decoded.
    pub fn field(&self) -> &'static str {
        self.field
    }
}
