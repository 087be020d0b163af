//! Transport that joins small DATA frames of HTTP/2.
//!
//! HTTP/2 counts DATA frames of less than 256 bytes that no stream has taken against a limit for the whole connection, and
//! ends the connection with ENHANCE_YOUR_CALM beyond it. A stream of small messages reaches the limit while its receiver
//! is slow, long before its flow-control window is full. [`JoinedDataReads`] makes one frame of adjacent ones of a stream
//! (their borders have no meaning, RFC 9113, section 6.1), so that messages that arrive together count as one.

use std::{
    io,
    ops::Range,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, ReadBuf};

use super::frames::{DATA, END_STREAM, FRAME_HEADER_BYTES, FrameHeader, FrameParser};

/// Maximum payload of a joined frame in bytes: that of a frame which every receiver accepts (RFC 9113, section 4.2).
const MAX_JOINED_BYTES: usize = 16 << 10;

/// Wrapper of an HTTP/2 connection's transport, whose reads have fewer DATA frames.
#[derive(Debug)]
pub(crate) struct JoinedDataReads<IO> {
    io: IO,
    joiner: DataJoiner,
}

impl<IO> JoinedDataReads<IO> {
    /// Wraps the transport `io`, on which this number of bytes precedes the first frame.
    pub(crate) fn new(io: IO, preface_bytes: usize) -> Self {
        Self {
            io,
            joiner: DataJoiner::with_skipped_bytes(preface_bytes),
        }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for JoinedDataReads<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { io, joiner } = self.get_mut();
        let before = buf.filled().len();
        ready!(Pin::new(io).poll_read(cx, buf))?;
        let new = buf.filled_mut().get_mut(before..).unwrap_or_default();
        let kept = joiner.join(new);
        buf.set_filled(before + kept);
        Poll::Ready(Ok(()))
    }
}

ambit_hbone::pass_writes!(JoinedDataReads);

/// Joins DATA frames in the bytes of one direction of a connection, read by read. Frames that a read has not completed
/// stay as they are: the receiver must not wait for bytes that the peer sends later.
#[derive(Debug)]
struct DataJoiner {
    /// Parser of the preface, and of frames that a read has not completed.
    begun: FrameParser,
}

/// Complete DATA frame in the current read, to which the next one may be joined.
#[derive(Clone, Copy, Debug)]
struct LastDataFrame {
    /// Position of its header.
    position: usize,
    header: FrameHeader,
}

impl DataJoiner {
    fn with_skipped_bytes(skipped: usize) -> Self {
        Self {
            begun: FrameParser::with_skipped_bytes(skipped),
        }
    }

    /// Joins frames in `bytes`, and returns the number of bytes that remain, from its start.
    fn join(&mut self, bytes: &mut [u8]) -> usize {
        let mut position = bytes.len() - self.begun.finish_frame(bytes).len();
        let mut end = position;
        let mut last: Option<LastDataFrame> = None;
        while let Some(rest) = bytes.get(position..)
            && let Some((header, rest)) = rest.split_first_chunk()
        {
            let header = FrameHeader::parse(*header);
            if rest.len() < header.length {
                break;
            }
            let frame = position..position + FRAME_HEADER_BYTES + header.length;
            position = frame.end;
            if let Some(before) = &mut last
                && let Some(joined) = join_headers(before.header, header)
            {
                end = move_down(bytes, frame.start + FRAME_HEADER_BYTES..frame.end, end);
                before.header = joined;
                write_header(bytes, before);
                continue;
            }
            last = (header.frame_type == DATA).then_some(LastDataFrame {
                position: end,
                header,
            });
            end = move_down(bytes, frame, end);
        }
        let rest = bytes.get(position..).unwrap_or_default();
        self.begun.advance(rest, |_| {});
        move_down(bytes, position..bytes.len(), end)
    }
}

/// Moves a part of `bytes` to a lower position, and returns the position after it there.
fn move_down(bytes: &mut [u8], part: Range<usize>, to: usize) -> usize {
    let end = to + part.len();
    // Most reads have nothing to join, and stay where they are.
    if part.start != to {
        bytes.copy_within(part, to);
    }
    end
}

/// Returns the header of a frame with the payloads of two adjacent ones, unless they must stay apart. Those without a
/// payload do, so that HTTP/2 counts them.
fn join_headers(first: FrameHeader, second: FrameHeader) -> Option<FrameHeader> {
    let are_joinable = second.frame_type == DATA
        && second.stream == first.stream
        && first.flags == 0
        && second.flags & !END_STREAM == 0
        && first.length > 0
        && second.length > 0
        && first.length + second.length <= MAX_JOINED_BYTES;
    are_joinable.then_some(FrameHeader {
        length: first.length + second.length,
        ..second
    })
}

/// Writes length and flags of a frame to its header.
fn write_header(bytes: &mut [u8], frame: &LastDataFrame) {
    // At most MAX_JOINED_BYTES, which two bytes hold.
    let [.., high, low] = frame.header.length.to_be_bytes();
    let start = [0, high, low, DATA, frame.header.flags];
    if let Some(place) = bytes.get_mut(frame.position..frame.position + start.len()) {
        place.copy_from_slice(&start);
    }
}

#[cfg(test)]
mod tests;
