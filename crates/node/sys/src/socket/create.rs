//! Creates TCP sockets, and defines the errors of creating and configuring them.

use std::{io, net::SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};

/// Error of creating or configuring a socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The network namespace cannot be entered.
    #[error("cannot enter the network namespace")]
    EnterNetns(#[source] io::Error),
    /// The call `socket()` failed.
    #[error("cannot make a socket")]
    Create(#[source] io::Error),
    /// A required option could not be set.
    #[error("cannot set {option} (is CAP_NET_ADMIN granted?)")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Cause of the error.
        #[source]
        source: io::Error,
    },
    /// The call `bind()` failed.
    #[error("cannot bind {addr}")]
    Bind {
        /// Address to bind.
        addr: SocketAddr,
        /// Cause of the error.
        #[source]
        source: io::Error,
    },
    /// The call `listen()` failed.
    #[error("cannot listen on {addr}")]
    Listen {
        /// Address to listen on.
        addr: SocketAddr,
        /// Cause of the error.
        #[source]
        source: io::Error,
    },
}

pub(super) fn new_socket(domain: Domain) -> Result<Socket, SocketError> {
    let kind = Type::STREAM.nonblocking().cloexec();
    Socket::new(domain, kind, Some(Protocol::TCP)).map_err(SocketError::Create)
}
