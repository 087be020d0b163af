//! Errors of opening outbound connections.

use std::{io, net::SocketAddr, time::Duration};

use ambit_hbone::{DialError, TunnelError};
use ambit_model::{ArcStr, FailureReason};
use ambit_sys::socket::SocketError;
use http::{StatusCode, uri::InvalidUri};

/// Error of connecting to a destination.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The CONNECT request's authority is invalid.
    #[error("the authority {authority:?} cannot be sent")]
    Authority {
        /// Authority of the CONNECT request.
        authority: String,
        /// Error of parsing the authority.
        #[source]
        source: InvalidUri,
    },
    /// The tunnel could not be opened.
    #[error(transparent)]
    Tunnel(#[from] TunnelError),
    /// The inner tunnel could not be opened.
    #[error(transparent)]
    InnerTunnel(#[from] InnerError),
    /// The control plane removed the destination while the connection to it was being opened.
    #[error("{workload} was removed from the mesh before {addr} accepted the connection")]
    WorkloadRemoved {
        /// Uid of the removed workload.
        workload: ArcStr,
        /// Address that was being connected to.
        addr: SocketAddr,
    },
    /// The tunnel to a waypoint could not be opened.
    #[error("cannot connect through the waypoint {waypoint}")]
    Waypoint {
        /// Name of the waypoint.
        waypoint: ArcStr,
        /// Error of opening the tunnel.
        #[source]
        source: Box<Self>,
    },
    /// The plain TCP connection could not be opened.
    #[error("connection failed: {addr}")]
    Plain {
        /// Address of the peer.
        addr: SocketAddr,
        /// Error of the plain TCP connection.
        #[source]
        source: PlainError,
    },
}

/// Error of opening a plain connection.
#[derive(Debug, thiserror::Error)]
pub enum PlainError {
    /// The socket could not be created.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The peer refused the connection, or is unreachable.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The connection was not established within this time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
}

impl ConnectError {
    /// Returns the HTTP status with which the peer refused the tunnel, if it did.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Tunnel(TunnelError::Status(status) | TunnelError::Denied { status, .. }) => {
                Some(*status)
            }
            Self::Waypoint { source, .. } => source.status(),
            _ => None,
        }
    }

    /// Whether the error may pass within seconds: no pod of a waypoint was reachable or ready.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Waypoint { source, .. } => match &**source {
                Self::Tunnel(error) => error.is_transient(),
                Self::WorkloadRemoved { .. } => true,
                _ => false,
            },
            _ => false,
        }
    }

    /// Returns the low-cardinality reason for metrics.
    pub fn reason(&self) -> FailureReason {
        match self {
            Self::Tunnel(error) => error.reason(),
            Self::InnerTunnel(error) => error.reason(),
            Self::Waypoint { source, .. } => source.reason(),
            Self::Authority { .. } | Self::Plain { .. } | Self::WorkloadRemoved { .. } => {
                FailureReason::Connect
            }
        }
    }
}

/// Error of opening the inner tunnel.
#[derive(Debug, thiserror::Error)]
pub enum InnerError {
    /// The inner CONNECT request's authority is invalid.
    #[error("the inner tunnel's authority cannot be sent")]
    Authority(#[from] InvalidUri),
    /// The connection to the inner tunnel's server could not be opened.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The inner tunnel's server refused the CONNECT request.
    #[error(transparent)]
    Tunnel(#[from] TunnelError),
}

impl InnerError {
    /// Returns the low-cardinality reason for metrics.
    pub fn reason(&self) -> FailureReason {
        match self {
            Self::Authority(_) => FailureReason::Connect,
            Self::Dial(error) => error.reason(),
            Self::Tunnel(error) => error.reason(),
        }
    }
}
