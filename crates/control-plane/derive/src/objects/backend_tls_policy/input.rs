//! Parsed BackendTLSPolicy: its targets, and its TLS settings or the reason why it is invalid.

use ambit_k8s_api::ObjectKey;
use ambit_model::ArcStr;

use crate::problem::FieldError;

/// Parsed BackendTLSPolicy object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BackendTlsInput {
    pub(crate) key: ObjectKey,
    pub(crate) created: String,
    pub(crate) targets: Vec<TlsTarget>,
    /// TLS settings, or the reason why the policy is invalid.
    pub(crate) tls: Result<TlsInput, InvalidPolicyReason>,
}

/// Service that the policy is attached to, or one port of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TlsTarget {
    pub(crate) key: ObjectKey,
    /// Name of the service port (`sectionName`); all ports if `None`.
    pub(crate) port: Option<ArcStr>,
}

/// TLS settings that a BackendTLSPolicy requires for connections to endpoints.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TlsInput {
    pub(crate) hostname: ArcStr,
    pub(crate) subject_alt_names: Vec<ArcStr>,
    /// Names of ConfigMaps with CA certificates, in the policy's namespace; `None` for the system's trust store.
    pub(crate) ca_config_maps: Option<Vec<ArcStr>>,
}

/// Reason why a BackendTLSPolicy is invalid.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct InvalidPolicyReason {
    /// Field `reason` of the status condition that reports the invalid policy.
    pub(crate) reason: &'static str,
    /// Whether a reference to CA certificates cannot be resolved, rather than another field being invalid.
    pub(crate) is_unresolved_reference: bool,
    pub(crate) message: String,
}

impl InvalidPolicyReason {
    pub(crate) fn from_field_error(error: &FieldError) -> Self {
        Self {
            reason: "Invalid",
            is_unresolved_reference: false,
            message: error.to_string(),
        }
    }

    pub(crate) fn unresolved_reference(reason: &'static str, message: String) -> Self {
        Self {
            reason,
            is_unresolved_reference: true,
            message,
        }
    }
}
