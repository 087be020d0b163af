//! The TLS listeners of a control plane, for gRPC and for HTTP/1.1, with limits on unauthenticated
//! connections.
//!
//! [`accept`] does handshakes, [`serve`] serves gRPC on the connections, and [`caller_state`]
//! limits the lifetime of a connection by the authentication state of its caller.
#![forbid(unsafe_code)]

mod accept;
mod caller_state;
mod serve;

pub use accept::{
    HandshakeCloseReason, IncomingConnections, PeerInfo, TlsConnection, http1_listener,
    incoming_connections, server_config,
};
pub use caller_state::{CallerState, ConnectionCloseReason};
pub use serve::{ConnectionCloseSignal, ServeOptions, serve};
