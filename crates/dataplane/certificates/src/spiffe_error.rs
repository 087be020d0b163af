//! Why a SPIFFE agent gives no certificate, in words for operators.

use std::{fmt, sync::Arc};

use ambit_model::Identity;
use tonic::{Code, Status};

use crate::svid::SvidError;

/// Why a SPIFFE agent gives no certificate for an identity.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SpiffeError {
    /// The agent cannot be reached, or refused the call.
    #[error("{api} answered {:?}: {}; {}", status.code(), status.message(), Advice(status.code()))]
    Status {
        /// The API and its socket.
        api: Arc<str>,
        /// The agent's status.
        status: Box<Status>,
    },
    /// The agent ended the stream.
    #[error("{0} ended the stream; the agent's log has the reason")]
    Ended(Arc<str>),
    /// The agent has no SVID of this identity for the caller.
    #[error(
        "{api} has no SVID of {identity}, it has {}; create a registration entry for it on this node, with the selectors \
         k8s:ns:{} and k8s:sa:{}",
        List(others), identity.namespace, identity.service_account
    )]
    NoEntry {
        /// The API and its socket.
        api: Arc<str>,
        /// Identity without an SVID.
        identity: Box<Identity>,
        /// SPIFFE IDs in the agent's answer (at most 8).
        others: Vec<String>,
    },
    /// The agent has no bundle of the identity's trust domain.
    #[error(
        "{api} has no bundle of the trust domain of {identity}: the mesh's trust domain (meshConfig.trustDomain) must be \
         SPIRE's"
    )]
    NoBundle {
        /// The API and its socket.
        api: Arc<str>,
        /// Identity of that trust domain.
        identity: Box<Identity>,
    },
    /// The SVID is unusable.
    #[error("{api} sent an SVID of {identity} that cannot be used; correct its registration entry")]
    Svid {
        /// The API and its socket.
        api: Arc<str>,
        /// Identity of the SVID.
        identity: Box<Identity>,
        /// Cause of the error.
        #[source]
        source: Arc<SvidError>,
    },
}

impl SpiffeError {
    /// Whether the agent answered, and another attempt brings the same.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Status { status, .. } => matches!(
                status.code(),
                Code::PermissionDenied
                    | Code::InvalidArgument
                    | Code::Unimplemented
                    | Code::OutOfRange
            ),
            Self::Ended(_) => false,
            Self::NoEntry { .. } | Self::NoBundle { .. } | Self::Svid { .. } => true,
        }
    }
}

/// Advice for operators about a status.
struct Advice(Code);

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Code::PermissionDenied => {
                "create a registration entry whose selectors match this pod, and for a node proxy name its SPIFFE ID in \
                 the agent's authorized_delegates"
            }
            Code::OutOfRange => "the answer exceeds the proxy's limit; reduce federated bundles",
            Code::Unimplemented => "the socket belongs to another API",
            _ => "check that the agent runs on this node and that its socket is mounted",
        })
    }
}

struct List<'a>(&'a [String]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("none"),
            names => f.write_str(&names.join(", ")),
        }
    }
}
