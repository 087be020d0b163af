//! Relay direction from one tunnel to another.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::RecvStream;

use super::{
    ends::{DirectionEnd, RelayEnds},
    received::{ReceivedFrames, StreamEnd},
    upload::{poll_closed_stream, poll_send},
};
use crate::{send_chunk::SendChunk, tunnel::TunnelSender};

/// Copies one direction between two tunnels. Window credit is returned when the other tunnel has accepted a frame.
#[derive(Debug, Default)]
pub(super) struct Forward {
    received: ReceivedFrames,
    /// Bytes that the other tunnel has not accepted yet.
    pending: Bytes,
}

impl Forward {
    /// Polls this direction of the relay. `answered`: whether the opposite direction has ended.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut RecvStream,
        to: &mut TunnelSender,
        ends: &mut RelayEnds,
        answered: bool,
        count: impl Fn(u64),
    ) -> Poll<DirectionEnd> {
        self.received.poll_receive(cx, from, ends);
        loop {
            if self.pending.is_empty() {
                let Some(next) = self.received.frames.pop() else {
                    break;
                };
                self.pending = next;
            }
            let before = self.pending.len();
            let sent = poll_send(cx, to, &mut self.pending);
            let taken = before - self.pending.len();
            count(taken as u64);
            // Fails only for more than was received.
            let _credited = from.flow_control().release_capacity(taken);
            if ready!(sent).is_err() {
                return poll_closed_stream(cx, &mut to.send, ends, answered);
            }
        }
        match self.received.stream_end {
            StreamEnd::Broken => Poll::Ready(DirectionEnd::SourceBroke),
            StreamEnd::EndOfData => {
                let end = SendChunk::new(Bytes::new(), &to.unsent);
                if to.send.send_data(end, true).is_ok() {
                    return Poll::Ready(DirectionEnd::Clean);
                }
                poll_closed_stream(cx, &mut to.send, ends, answered)
            }
            // With the other direction over, nothing else detects that the peer has gone.
            StreamEnd::Open if answered => {
                // For any reset code.
                let _reset = ready!(to.send.poll_reset(cx));
                poll_closed_stream(cx, &mut to.send, ends, true)
            }
            StreamEnd::Open => Poll::Pending,
        }
    }
}
