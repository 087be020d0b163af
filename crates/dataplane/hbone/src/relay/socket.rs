//! Detects reset sockets while the relay has no reason to read from them.
//!
//! While bytes wait for a peer that does not read, the relay does not read from their sender, and so does not notice
//! that the sender has reset its connection. The socket's error is then checked once a second.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::{Sleep, sleep},
};

/// Interval of `SO_ERROR` checks while bytes read from a socket cannot be delivered.
const SOCKET_ERROR_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Byte stream whose failure can be detected without reading or writing.
pub trait Socket: AsyncRead + AsyncWrite + Unpin {
    /// Returns the error that ended the connection (`SO_ERROR`), if there is one; each error is returned once.
    fn take_socket_error(&self) -> Option<io::Error> {
        None
    }
}

impl Socket for TcpStream {
    fn take_socket_error(&self) -> Option<io::Error> {
        self.take_error().unwrap_or_else(Some)
    }
}

#[cfg(test)]
impl Socket for tokio::io::DuplexStream {}

/// Timer of the `SO_ERROR` checks of one socket, which runs while bytes read from the socket cannot be delivered.
#[derive(Debug, Default)]
pub(super) struct SocketErrorTimer(Option<Pin<Box<Sleep>>>);

impl SocketErrorTimer {
    /// Completes with the error of a socket that has failed while bytes read from it wait.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        socket: &impl Socket,
        bytes_wait: bool,
    ) -> Poll<io::Error> {
        if !bytes_wait {
            self.0 = None;
            return Poll::Pending;
        }
        loop {
            let timer = self
                .0
                .get_or_insert_with(|| Box::pin(sleep(SOCKET_ERROR_CHECK_INTERVAL)));
            ready!(timer.as_mut().poll(cx));
            self.0 = None;
            if let Some(error) = socket.take_socket_error() {
                return Poll::Ready(error);
            }
        }
    }
}
