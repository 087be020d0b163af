//! Relay direction from the application's socket to the tunnel.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, SendStream};
use tokio::io::AsyncRead;

use super::{
    ends::{DirectionEnd, RelayEnds, RelayError},
    meter::Meter,
};
use crate::{
    scratch::{self, SCRATCH_BYTES},
    send_chunk::SendChunk,
    tunnel::TunnelSender,
};

/// Size of the first read, as a binary logarithm of bytes. The size grows while reads fill the buffer, and shrinks when
/// they do not.
const INITIAL_READ_LOG2: u8 = 14;
/// Maximum size of a read, that of the buffer, as a binary logarithm of bytes.
const MAX_READ_LOG2: u8 = 19;
const _: () = assert!(1 << MAX_READ_LOG2 == SCRATCH_BYTES);

/// Copies from a socket to a tunnel's stream, one piece at a time.
#[derive(Debug)]
pub(super) struct Upload {
    /// Bytes that were read, but not yet accepted by HTTP/2.
    pending: Bytes,
    /// Maximum size of the next read, as a binary logarithm of bytes.
    next_read_log2: u8,
    eof: bool,
}

impl Default for Upload {
    fn default() -> Self {
        Self {
            pending: Bytes::new(),
            next_read_log2: INITIAL_READ_LOG2,
            eof: false,
        }
    }
}

impl Upload {
    /// Whether bytes read from the socket wait for flow-control credit of the tunnel.
    pub(super) fn has_pending_bytes(&self) -> bool {
        !self.pending.is_empty()
    }

    pub(super) fn poll<R: AsyncRead + Unpin, M: Meter>(
        &mut self,
        cx: &mut Context<'_>,
        app: &mut R,
        sender: &mut TunnelSender,
        ends: &mut RelayEnds,
        meter: &M,
    ) -> Poll<DirectionEnd> {
        loop {
            if !self.pending.is_empty() && ready!(poll_send(cx, sender, &mut self.pending)).is_err()
            {
                return poll_closed_stream(cx, &mut sender.send, ends, ends.download_ended);
            }
            if self.eof && ends.first_error.is_some() {
                // A socket that was reset may show an end of data.
                return Poll::Ready(DirectionEnd::Clean);
            }
            if self.eof {
                let end = SendChunk::new(Bytes::new(), &sender.unsent);
                return match sender.send.send_data(end, true) {
                    Ok(()) => Poll::Ready(DirectionEnd::Clean),
                    Err(_closed) => {
                        poll_closed_stream(cx, &mut sender.send, ends, ends.download_ended)
                    }
                };
            }
            match scratch::poll_read(app, cx, 1 << self.next_read_log2) {
                Poll::Ready(Ok(bytes)) if bytes.is_empty() => self.eof = true,
                Poll::Ready(Ok(bytes)) => {
                    meter.count_app_sent(bytes.len() as u64);
                    self.next_read_log2 = next_read_log2(self.next_read_log2, bytes.len());
                    self.pending = bytes;
                }
                Poll::Ready(Err(error)) => {
                    return ends.record_broken_source(RelayError::Receive(error));
                }
                // With the other direction over, nothing else detects that the peer has gone.
                Poll::Pending if ends.download_ended => {
                    // For any reset code.
                    let _reset = ready!(sender.send.poll_reset(cx));
                    return poll_closed_stream(cx, &mut sender.send, ends, true);
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

/// Passes pending bytes to HTTP/2 as far as the flow-control windows permit. Fails when the stream is closed.
pub(super) fn poll_send(
    cx: &mut Context<'_>,
    sender: &mut TunnelSender,
    pending: &mut Bytes,
) -> Poll<Result<(), StreamClosed>> {
    while !pending.is_empty() {
        let Some(Ok(capacity)) = ready!(sender.poll_capacity(cx, pending.len())) else {
            return Poll::Ready(Err(StreamClosed));
        };
        let TunnelSender { send, unsent, .. } = &mut *sender;
        let piece = pending.split_to(capacity.min(pending.len()));
        if send
            .send_data(SendChunk::new(piece, unsent), false)
            .is_err()
        {
            return Poll::Ready(Err(StreamClosed));
        }
    }
    Poll::Ready(Ok(()))
}

/// Returns the size of the read after one of at most `1 << log2` bytes that returned `read` bytes.
fn next_read_log2(log2: u8, read: usize) -> u8 {
    let size = 1 << log2;
    if read == size {
        (log2 + 2).min(MAX_READ_LOG2)
    } else if read < size / 8 {
        (log2 - 1).max(INITIAL_READ_LOG2)
    } else {
        log2
    }
}

/// Error of sending on a stream that the peer has closed.
pub(super) struct StreamClosed;

/// Returns how this direction ends after the peer has closed the stream. `answered` is whether the opposite direction
/// has ended; a stream that closes with NO_ERROR after that is no error.
pub(super) fn poll_closed_stream(
    cx: &mut Context<'_>,
    send: &mut SendStream<SendChunk>,
    ends: &mut RelayEnds,
    answered: bool,
) -> Poll<DirectionEnd> {
    let error = match send.poll_reset(cx) {
        // A server that has responded in full needs no more data (RFC 9113, section 8.1). The
        // response is not truncated, so our socket is closed normally; the kernel resets further
        // data.
        Poll::Ready(Ok(Reason::NO_ERROR)) if answered && ends.first_error.is_none() => {
            return Poll::Ready(DirectionEnd::Clean);
        }
        Poll::Ready(Ok(reason)) => reason.into(),
        Poll::Ready(Err(error)) => error,
        Poll::Pending => Reason::STREAM_CLOSED.into(),
    };
    ends.record_broken_sink(RelayError::Tunnel(error))
}
