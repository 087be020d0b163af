//! Errors of fetching certificates from a SPIFFE agent, with advice for operators.

use std::{fmt, sync::Arc};

use ambit_model::Identity;
use tonic::{Code, Status};

use crate::svid::SvidError;

/// Reason why a SPIFFE agent provides no certificate for an identity.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SpiffeError {
    /// The agent cannot be reached, or rejected the call.
    #[error("{api} answered {:?}: {}; {}", status.code(), status.message(), StatusAdvice(status.code()))]
    Status {
        /// Name of the API, with its socket.
        api: Arc<str>,
        /// gRPC status of the call.
        status: Box<Status>,
    },
    /// The agent ended the stream of this API.
    #[error("{0} ended the stream; the agent's log has the reason")]
    StreamEnded(Arc<str>),
    /// The agent has no SVID of this identity for the caller, since no registration entry matches.
    #[error(
        "{api} has no SVID of {identity}, it has {}; create a registration entry for it on this node, with the selectors \
         k8s:ns:{} and k8s:sa:{}",
        CommaSeparated(others), identity.namespace, identity.service_account
    )]
    NoRegistrationEntry {
        /// Name of the API, with its socket.
        api: Arc<str>,
        /// Identity without an SVID.
        identity: Box<Identity>,
        /// SPIFFE IDs that the agent sent instead (at most 8).
        others: Vec<String>,
    },
    /// The agent has no bundle of the identity's trust domain.
    #[error(
        "{api} has no bundle of the trust domain of {identity}: the mesh's trust domain (meshConfig.trustDomain) must be \
         SPIRE's"
    )]
    NoBundle {
        /// Name of the API, with its socket.
        api: Arc<str>,
        /// Identity whose trust domain has no bundle.
        identity: Box<Identity>,
    },
    /// The SVID that the agent sent cannot be used.
    #[error("{api} sent an SVID of {identity} that cannot be used; correct its registration entry")]
    InvalidSvid {
        /// Name of the API, with its socket.
        api: Arc<str>,
        /// Identity of the SVID.
        identity: Box<Identity>,
        /// Cause of the error.
        #[source]
        source: Arc<SvidError>,
    },
}

impl SpiffeError {
    /// Whether the agent rejected the request, so that a retry would be rejected, too.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Status { status, .. } => matches!(
                status.code(),
                Code::PermissionDenied
                    | Code::InvalidArgument
                    | Code::Unimplemented
                    | Code::OutOfRange
            ),
            Self::StreamEnded(_) => false,
            Self::NoRegistrationEntry { .. } | Self::NoBundle { .. } | Self::InvalidSvid { .. } => {
                true
            }
        }
    }
}

/// Displays advice for operators on a gRPC status of the SPIFFE agent.
struct StatusAdvice(Code);

impl fmt::Display for StatusAdvice {
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

struct CommaSeparated<'a>(&'a [String]);

impl fmt::Display for CommaSeparated<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("none"),
            names => f.write_str(&names.join(", ")),
        }
    }
}
