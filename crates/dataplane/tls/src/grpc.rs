//! gRPC over TLS: channels to the control plane, and the listener of a control plane.

mod client;
mod server;

pub use client::{ChannelConfig, ChannelError, channel};
pub use server::{Closed, Incoming, PeerInfo, TlsConnection, incoming, server_config};
