//! Errors of connecting.

use std::{io, net::SocketAddr, time::Duration};

use ambit_hbone::{DialError, TunnelError};
use ambit_model::{ArcStr, Reason};
use ambit_sys::socket::SocketError;
use http::{StatusCode, uri::InvalidUri};

/// Error of connecting to a destination.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The authority is invalid.
    #[error("the authority {authority:?} cannot be sent")]
    Authority {
        /// Authority of the CONNECT request.
        authority: String,
        /// Cause of the error.
        #[source]
        source: InvalidUri,
    },
    /// The tunnel could not be opened.
    #[error(transparent)]
    Tunnel(#[from] TunnelError),
    /// Failure to open the inner tunnel.
    #[error(transparent)]
    Inner(#[from] InnerError),
    /// The control plane removed the destination while it was being connected to.
    #[error("{workload} was removed from the mesh before {addr} accepted the connection")]
    Departed {
        /// The workload's uid.
        workload: ArcStr,
        /// Address of the gateway.
        addr: SocketAddr,
    },
    /// Failure to open a tunnel to a waypoint.
    #[error("cannot connect through the waypoint {waypoint}")]
    Waypoint {
        /// Name of the waypoint.
        waypoint: ArcStr,
        /// Cause of the error.
        #[source]
        source: Box<Self>,
    },
    /// Failure to open a plain connection.
    #[error("connection failed: {addr}")]
    Plain {
        /// Address of the peer.
        addr: SocketAddr,
        /// Cause of the error.
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
    /// Timeout of the connection.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
}

impl ConnectError {
    /// The status with which the peer refused the tunnel, if it did.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Tunnel(TunnelError::Status(status) | TunnelError::Denied { status, .. }) => {
                Some(*status)
            }
            Self::Waypoint { source, .. } => source.status(),
            _ => None,
        }
    }

    /// Whether the condition may end within seconds: no pod of a waypoint was reachable, or serves yet.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Waypoint { source, .. } => match &**source {
                Self::Tunnel(error) => error.is_passing(),
                Self::Departed { .. } => true,
                _ => false,
            },
            _ => false,
        }
    }

    /// Returns the low-cardinality reason for metrics.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Tunnel(error) => error.reason(),
            Self::Inner(error) => error.reason(),
            Self::Waypoint { source, .. } => source.reason(),
            Self::Authority { .. } | Self::Plain { .. } | Self::Departed { .. } => Reason::Connect,
        }
    }
}

/// The inner tunnel could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum InnerError {
    /// The authority is invalid.
    #[error("the inner tunnel's authority cannot be sent")]
    Authority(#[from] InvalidUri),
    /// No connection to the far end.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// Refusal by the peer.
    #[error(transparent)]
    Tunnel(#[from] TunnelError),
}

impl InnerError {
    /// Returns the low-cardinality reason for metrics.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Authority(_) => Reason::Connect,
            Self::Dial(error) => error.reason(),
            Self::Tunnel(error) => error.reason(),
        }
    }
}
