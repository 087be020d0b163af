//! Resets connections in the accept queues of sockets that no proxy serves.

use std::{os::fd::AsFd, time::Duration};

use rustix::net::{SocketFlags, accept_with, sockopt};

/// Maximum connections that are reset in one pass, to limit its duration.
const MAX_REFUSALS_PER_PASS: usize = 1024;

/// Accepts and resets the connections in a socket's accept queue; returns their number. Ignores descriptors that are
/// not listening sockets, and sockets that would block.
pub(crate) fn reset_pending_connections(socket: impl AsFd) -> usize {
    let is_listening = sockopt::socket_acceptconn(&socket).unwrap_or(false);
    let is_nonblocking = rustix::fs::fcntl_getfl(&socket)
        .is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK));
    if !is_listening || !is_nonblocking {
        return 0;
    }
    let mut refused = 0;
    while refused < MAX_REFUSALS_PER_PASS
        && let Ok(connection) = accept_with(&socket, SocketFlags::CLOEXEC)
    {
        // Without lingering disabled the client would see an orderly close.
        let reset = sockopt::set_socket_linger(&connection, Some(Duration::ZERO));
        if let Err(error) = reset {
            tracing::debug!(%error, "an unaccepted connection is closed, not reset");
        }
        refused += 1;
    }
    refused
}
