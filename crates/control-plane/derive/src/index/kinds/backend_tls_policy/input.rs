//! A policy as it is understood: its targets, and its TLS settings or the reason why it has none.

use ambit_k8s_api::ObjectKey;
use ambit_model::ArcStr;

use crate::problem::FieldError;

/// A policy as the mesh sees it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BackendTlsInput {
    pub(super) key: ObjectKey,
    pub(super) created: String,
    pub(super) targets: Vec<Target>,
    /// Or why there can be none.
    pub(super) tls: Result<TlsInput, Refused>,
}

/// Target of a policy.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Target {
    pub(super) key: ObjectKey,
    /// The name of one port; all ports if `None`.
    pub(super) port: Option<ArcStr>,
}

/// TLS settings of a policy.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TlsInput {
    pub(super) hostname: ArcStr,
    pub(super) names: Vec<ArcStr>,
    /// ConfigMaps of the policy's namespace; `None`: the system's authorities.
    pub(super) roots: Option<Vec<ArcStr>>,
}

/// Why a policy cannot be followed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Refused {
    /// Reason of the condition that reports it.
    pub(super) reason: &'static str,
    /// Whether a reference is to blame.
    pub(super) is_reference: bool,
    pub(super) message: String,
}

impl Refused {
    pub(super) fn invalid(error: &FieldError) -> Self {
        Self {
            reason: "Invalid",
            is_reference: false,
            message: error.to_string(),
        }
    }

    pub(super) fn reference(reason: &'static str, message: String) -> Self {
        Self {
            reason,
            is_reference: true,
            message,
        }
    }
}
