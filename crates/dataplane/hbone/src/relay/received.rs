//! Frames received on a tunnel's stream that the relay has not passed on yet.
//!
//! The relay takes all received frames out of HTTP/2 at once: many small frames cost HTTP/2 more than their bytes, up
//! to its limit for a connection. The stream's receive window bounds the bytes.

use std::task::{Context, Poll};

use h2::RecvStream;

use super::ends::{RelayEnds, RelayError};
use crate::frames::Frames;

#[derive(Debug, Default)]
pub(super) struct ReceivedFrames {
    pub(super) frames: Frames,
    pub(super) stream_end: StreamEnd,
}

/// State of a stream's receiving side: open, ended or broken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// The stream is open, and more frames may follow.
    #[default]
    Open,
    /// The peer ended its data (END_STREAM).
    EndOfData,
    /// The stream broke, for instance by a reset.
    Broken,
}

impl ReceivedFrames {
    /// Takes all frames that HTTP/2 has received for the stream.
    pub(super) fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        recv: &mut RecvStream,
        ends: &mut RelayEnds,
    ) {
        while self.stream_end == StreamEnd::Open {
            match recv.poll_data(cx) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(frame))) => self.frames.push(frame),
                Poll::Ready(Some(Err(error))) => {
                    ends.record_error(RelayError::Tunnel(error));
                    self.stream_end = StreamEnd::Broken;
                }
                Poll::Ready(None) => self.stream_end = StreamEnd::EndOfData,
            }
        }
    }
}
