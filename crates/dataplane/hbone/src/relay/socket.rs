//! Sockets that are reset while the relay has no reason to read from them.
//!
//! Bytes that wait for a peer which does not read keep the relay from reading on, and so from noticing that their
//! sender has reset its connection. The socket's error is then checked once a second.

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

/// Interval of checks of a socket's error while its bytes wait.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A byte stream whose failure can be seen without reading or writing.
pub trait Socket: AsyncRead + AsyncWrite + Unpin {
    /// The error that has ended the connection, if one has. It is returned once.
    fn failure(&self) -> Option<io::Error> {
        None
    }
}

impl Socket for TcpStream {
    fn failure(&self) -> Option<io::Error> {
        self.take_error().unwrap_or_else(Some)
    }
}

#[cfg(test)]
impl Socket for tokio::io::DuplexStream {}

/// Watches one socket whose bytes wait.
#[derive(Debug, Default)]
pub(super) struct Watch(Option<Pin<Box<Sleep>>>);

impl Watch {
    /// Ready with the error of a socket that has failed while its bytes wait.
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
                .get_or_insert_with(|| Box::pin(sleep(CHECK_INTERVAL)));
            ready!(timer.as_mut().poll(cx));
            self.0 = None;
            if let Some(error) = socket.failure() {
                return Poll::Ready(error);
            }
        }
    }
}
