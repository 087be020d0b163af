//! HBONE: HTTP/2 CONNECT tunnels over mTLS, the pool of connections, and the relay between tunnels and sockets.
//!
//! Everything here belongs to one worker thread: a connection, the pool entry that owns it and the tunnels on it
//! never cross threads, so nothing on the data path waits for another thread. The crate takes addresses, TLS
//! configurations and requests, and decides nothing about routing or authorization.
#![forbid(unsafe_code)]

mod buffered_reads;
mod byte_receiver;
pub mod client;
mod frames;
mod gathered_writes;
mod lease;
mod passed_writes;
mod pinger;
pub mod pool;
mod portioned_reads;
pub mod refusal;
pub mod relay;
mod scratch;
mod send_chunk;
pub mod server;
mod settings;
pub mod tls;
mod tunnel;
mod window_growth;
mod windows;
mod withdrawal;

pub use client::{ClientConnection, DialError, TunnelError};
pub use lease::{Liveness, Permit};
pub use pinger::PingTimeout;
pub use pool::{Pool, PoolKey, WeakPool};
pub use portioned_reads::PortionedReads;
pub use relay::{
    Meter, RelayError, ReversedMeter, Socket, relay_plain, relay_tunnel, relay_tunnels,
};
pub use server::{IncomingRequest, ServeError};
pub use settings::Settings;
pub use tunnel::{Tunnel, TunnelIo};
