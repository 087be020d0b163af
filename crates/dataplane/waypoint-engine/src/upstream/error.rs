//! Reasons why a connection to an upstream cannot be opened.

use std::net::IpAddr;

use ambit_egress::ForbiddenAddress;
use ambit_hbone::{DialError, TunnelError};
use ambit_model::ArcStr;
use ambit_proxy::{ResolveError, dial::ConnectError};
use ambit_route::RouteError;

use crate::{memory::BudgetExhausted, names::TooManyLookups, tls_origination::OriginationError};

/// Reason why no connection to an upstream could be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpstreamError {
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    #[error(transparent)]
    Connect(ConnectError),
    #[error("destinations in other networks are not supported by this waypoint")]
    OtherNetwork,
    #[error("connecting took longer than the DestinationRule allows: {0:?}")]
    ConnectTimeout(std::time::Duration),
    #[error(transparent)]
    Forbidden(#[from] ForbiddenAddress),
    #[error(
        "{host} resolves to {ip}, an address of the mesh, which is not called by a wildcard's hosts"
    )]
    MeshAddress { host: ArcStr, ip: IpAddr },
    #[error(
        "{host} resolves to {ip}, the address of a pod: an endpoint with a tunnel of its own is no pod of another name"
    )]
    TunnelToPod { host: ArcStr, ip: IpAddr },
    #[error(transparent)]
    Tls(#[from] OriginationError),
    #[error(transparent)]
    TooManyLookups(#[from] TooManyLookups),
    #[error("no room for a tunnel to the endpoint")]
    Memory(#[from] BudgetExhausted),
    #[error("the connection ended before the header of the PROXY protocol was sent")]
    ProxyProtocol(#[source] std::io::Error),
}

impl From<ConnectError> for UpstreamError {
    /// Converts the failure of an endpoint, or of the caller's budget that has no room for a connection.
    fn from(error: ConnectError) -> Self {
        if let ConnectError::Tunnel(TunnelError::Dial(dial)) = &error
            && let DialError::Prepare { source, .. } = &**dial
            && let Some(exhausted) = source.downcast_ref::<BudgetExhausted>()
        {
            return Self::Memory(*exhausted);
        }
        Self::Connect(error)
    }
}

#[cfg(test)]
mod tests {
    use ambit_model::FailureReason;

    use super::*;
    use crate::memory::BudgetScope;

    #[test]
    fn only_an_exhausted_budget_is_the_callers_failure() {
        let failed = |source| {
            let dial = DialError::Prepare {
                text: "prepare",
                reason: FailureReason::Connect,
                source,
            };
            UpstreamError::from(ConnectError::Tunnel(TunnelError::Dial(dial.into())))
        };
        let exhausted = BudgetExhausted(BudgetScope::Connection);
        assert!(matches!(
            failed(Box::new(exhausted)),
            UpstreamError::Memory(found) if found == exhausted
        ));
        assert!(matches!(
            failed("no socket".into()),
            UpstreamError::Connect(_)
        ));
    }
}
