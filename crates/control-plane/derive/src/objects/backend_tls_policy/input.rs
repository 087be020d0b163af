//! A policy as it is understood: its targets, and its TLS settings or the reason why it has none.

use ambit_k8s_api::ObjectKey;
use ambit_model::ArcStr;

use crate::problem::FieldError;

/// A policy as the mesh sees it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BackendTlsInput {
    pub(crate) key: ObjectKey,
    pub(crate) created: String,
    pub(crate) targets: Vec<Target>,
    /// Or why there can be none.
    pub(crate) tls: Result<TlsInput, Refused>,
}

/// Target of a policy.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Target {
    pub(crate) key: ObjectKey,
    /// The name of one port; all ports if `None`.
    pub(crate) port: Option<ArcStr>,
}

/// TLS settings of a policy.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TlsInput {
    pub(crate) hostname: ArcStr,
    pub(crate) names: Vec<ArcStr>,
    /// ConfigMaps of the policy's namespace; `None`: the system's authorities.
    pub(crate) roots: Option<Vec<ArcStr>>,
}

/// Why a policy cannot be followed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Refused {
    /// Reason of the condition that reports it.
    pub(crate) reason: &'static str,
    /// Whether a reference is to blame.
    pub(crate) is_reference: bool,
    pub(crate) message: String,
}

impl Refused {
    pub(crate) fn invalid(error: &FieldError) -> Self {
        Self {
            reason: "Invalid",
            is_reference: false,
            message: error.to_string(),
        }
    }

    pub(crate) fn reference(reason: &'static str, message: String) -> Self {
        Self {
            reason,
            is_reference: true,
            message,
        }
    }
}
