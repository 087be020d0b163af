//! From the application's socket into the tunnel.

use std::{
    io,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::SendStream;
use tokio::io::AsyncRead;

use super::{Ended, Meter, RelayError, is_gone, is_quiet};
use crate::scratch::{self, SCRATCH};

/// The first reads; grows while reads come back full, shrinks when they do not.
const SMALL: usize = 16 << 10;

/// Copies from a socket to a stream, one piece at a time.
#[derive(Debug)]
pub(super) struct Upload {
    /// Read but not taken by HTTP/2 yet.
    pending: Bytes,
    /// How much the next read takes at most.
    chunk: usize,
    eof: bool,
}

impl Default for Upload {
    fn default() -> Self {
        Self {
            pending: Bytes::new(),
            chunk: SMALL,
            eof: false,
        }
    }
}

impl Upload {
    pub(super) fn poll<R: AsyncRead + Unpin, M: Meter>(
        &mut self,
        cx: &mut Context<'_>,
        app: &mut R,
        send: &mut SendStream<Bytes>,
        other_ended: bool,
        meter: &M,
    ) -> Poll<Result<Ended, RelayError>> {
        loop {
            if !self.pending.is_empty()
                && let Some(end) = ready!(self.poll_send(cx, send))?
            {
                return Poll::Ready(Ok(end));
            }
            if self.eof {
                return Poll::Ready(match send.send_data(Bytes::new(), true) {
                    Ok(()) => Ok(Ended::Clean),
                    Err(error) => ended(error),
                });
            }
            match scratch::poll_read(app, cx, self.chunk) {
                Poll::Ready(Ok(bytes)) if bytes.is_empty() => self.eof = true,
                Poll::Ready(Ok(bytes)) => {
                    meter.app_sent(bytes.len() as u64);
                    self.chunk = next_chunk(self.chunk, bytes.len());
                    self.pending = bytes;
                }
                Poll::Ready(Err(error)) if is_gone(&error) => self.eof = true,
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(Err(RelayError::Receive(error)));
                }
                // With the other direction over nobody else notices that the peer has gone.
                Poll::Pending if other_ended => {
                    return match ready!(send.poll_reset(cx)) {
                        Ok(_reason) => Poll::Ready(Ok(Ended::Gone)),
                        Err(error) => Poll::Ready(ended(error)),
                    };
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Hands the pending bytes to HTTP/2 as its windows allow. `Some` when the stream is closed.
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        send: &mut SendStream<Bytes>,
    ) -> Poll<Result<Option<Ended>, RelayError>> {
        send.reserve_capacity(self.pending.len());
        while !self.pending.is_empty() {
            let capacity = send.capacity();
            if capacity == 0 {
                match ready!(send.poll_capacity(cx)) {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Poll::Ready(ended(error).map(Some)),
                    None => return Poll::Ready(Ok(Some(Ended::Gone))),
                }
                continue;
            }
            let piece = self.pending.split_to(capacity.min(self.pending.len()));
            if let Err(error) = send.send_data(piece, false) {
                return Poll::Ready(ended(error).map(Some));
            }
        }
        Poll::Ready(Ok(None))
    }
}

fn next_chunk(chunk: usize, read: usize) -> usize {
    if read == chunk {
        (chunk * 4).min(SCRATCH)
    } else if read < chunk / 8 {
        (chunk / 2).max(SMALL)
    } else {
        chunk
    }
}

/// An error on the stream's sending side. The peer closing the stream is its end, not a failure;
/// neither is a stream that is closed already (`user error`), which the receiving side reports.
fn ended(error: h2::Error) -> Result<Ended, RelayError> {
    if is_quiet(&error) || error.is_io() && error.get_io().is_some_and(is_gone_io) {
        return Ok(Ended::Gone);
    }
    if error.is_reset() || error.is_go_away() || error.is_io() {
        return Err(RelayError::Tunnel(error));
    }
    Ok(Ended::Gone)
}

fn is_gone_io(error: &io::Error) -> bool {
    is_gone(error)
}
