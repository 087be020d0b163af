//! Relay direction from one socket to another.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};

use super::ends::{DirectionEnd, RelayEnds, RelayError};
use crate::scratch;

/// Copies one direction between two sockets.
#[derive(Debug, Default)]
pub(super) struct SocketCopy {
    /// Bytes that were read but not written yet.
    pending: Bytes,
    /// Whether the source socket has reached its end of data.
    eof: bool,
}

impl SocketCopy {
    /// Whether bytes read from the source socket wait to be written to the other socket.
    pub(super) fn has_pending_bytes(&self) -> bool {
        !self.pending.is_empty()
    }

    pub(super) fn poll<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut R,
        to: &mut W,
        ends: &mut RelayEnds,
        count: impl Fn(u64),
    ) -> Poll<DirectionEnd> {
        loop {
            if !self.pending.is_empty() {
                match ready!(Pin::new(&mut *to).poll_write(cx, &self.pending)) {
                    Ok(0) => {
                        return ends
                            .record_broken_sink(send_error(io::ErrorKind::WriteZero.into()));
                    }
                    Ok(n) => drop(self.pending.split_to(n)),
                    Err(error) => return ends.record_broken_sink(send_error(error)),
                }
                continue;
            }
            if self.eof && ends.first_error.is_some() {
                // A socket that was reset may show an end of data.
                return Poll::Ready(DirectionEnd::Clean);
            }
            if self.eof {
                return match ready!(Pin::new(&mut *to).poll_shutdown(cx)) {
                    Ok(()) => Poll::Ready(DirectionEnd::Clean),
                    Err(error) => ends.record_broken_sink(send_error(error)),
                };
            }
            let mut write_failed = false;
            let passed = scratch::poll_read_and_write(from, cx, |cx, bytes| {
                let result = ready!(Pin::new(&mut *to).poll_write(cx, bytes));
                write_failed = result.is_err();
                Poll::Ready(result)
            });
            match ready!(passed) {
                Ok(None) => self.eof = true,
                Ok(Some((n, rest))) => {
                    count(n as u64);
                    self.pending = rest;
                }
                Err(error) if write_failed => return ends.record_broken_sink(send_error(error)),
                Err(error) => return ends.record_broken_source(RelayError::Receive(error)),
            }
        }
    }
}

fn send_error(error: io::Error) -> RelayError {
    RelayError::Send(error)
}
