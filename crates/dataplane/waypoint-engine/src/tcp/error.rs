//! Errors of connections that the waypoint does not relay.

use ambit_l7::authz::HttpDecision;
use http::StatusCode;

use super::routed_connection::RouteError;
use crate::{destination::NoUpstream, session::MisdirectedHost, upstream::UpstreamError};

/// Reason why the waypoint does not relay a connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TcpError {
    #[error("{0}")]
    Denied(HttpDecision),
    #[error("{0}")]
    Unauthorized(String),
    #[error(
        "the connection is not HTTP, {0} is for requests to its port, and no Service declares the port's protocol"
    )]
    NotHttp(String),
    #[error("the control plane does not name the waypoint's own pod")]
    NoOwnWorkload,
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    #[error(transparent)]
    DestinationRule(#[from] NoUpstream),
    #[error(transparent)]
    MisdirectedHost(#[from] MisdirectedHost),
}

impl TcpError {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Denied(_) | Self::Unauthorized(_) | Self::NotHttp(_) => StatusCode::FORBIDDEN,
            Self::NoOwnWorkload => StatusCode::SERVICE_UNAVAILABLE,
            Self::Upstream(UpstreamError::Memory(_) | UpstreamError::TooManyLookups(_)) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            // No 503: the waypoint itself is available, so that the client's proxy neither waits nor tries another
            // replica.
            Self::Route(_) | Self::Upstream(_) | Self::DestinationRule(_) => {
                StatusCode::BAD_GATEWAY
            }
            Self::MisdirectedHost(_) => StatusCode::MISDIRECTED_REQUEST,
        }
    }
}
