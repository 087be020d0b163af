//! Timeout and memory charge for HTTP/2 header blocks of requests that hyper has not delivered yet.
//!
//! hyper decodes a block frame by frame, and keeps the decoded fields until the block ends, however long that takes; it
//! also keeps trailers until the body before them is read. Both are charged here by their bytes on the wire: each byte
//! is at most one field, and a field takes at most [`FIELD_OVERHEAD_BYTES`] in addition to its name and value, which
//! HPACK's table holds as well.

use std::{
    collections::HashMap,
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

use super::{header_timeout::HeaderTimeoutError, overload::HeaderBlocksTooLarge};
use crate::{
    http2::frames::{
        CONTINUATION, END_HEADERS, END_STREAM, FrameEvent, FrameParser, HEADERS, PREFACE,
        RST_STREAM,
    },
    memory::{ChargePurpose, ConnectionMemory, MemoryPermit},
};

/// Bytes of a decoded field in a header map in addition to its name and value, including spare capacity.
const FIELD_OVERHEAD_BYTES: usize = 128;
/// Overhead of each field in HTTP/2's size of a header section (RFC 9113, section 6.5.2).
const EMPTY_FIELD_BYTES: usize = 32;
/// Maximum encoded size of trailers that are not charged: those of gRPC and checksums are smaller.
const MAX_UNCHARGED_TRAILERS_BYTES: usize = 64;
/// Bytes of header blocks after which a connection's task yields to other tasks of the worker: each byte may decode to
/// a field of up to 4 KiB.
const MAX_BLOCK_BYTES_PER_POLL: usize = 1024;
/// Size of reads, in bytes, while the input is dense: more than half of this size in the last read was header blocks.
const DENSE_READ_BYTES: usize = 512;
const DENSE_BLOCK_BYTES: usize = DENSE_READ_BYTES / 2;

/// HTTP/2 header block whose end has not been received.
#[derive(Clone, Copy, Debug)]
struct OpenHeaderBlock {
    stream: u32,
    bytes: usize,
    is_trailers: bool,
}

/// Tracker of the header blocks and trailers that hyper holds before it delivers them.
#[derive(Debug, Default)]
struct HeaderBlockTracker {
    open_block: Option<OpenHeaderBlock>,
    last_stream: u32,
    /// Bytes charged for the trailers of each stream, until the stream's request ends.
    trailers: HashMap<u32, usize>,
    /// Maximum size of a header section, in bytes.
    max_section_bytes: usize,
}

impl HeaderBlockTracker {
    /// Returns an upper bound of the memory that a header block of this encoded size takes once decoded.
    fn max_decoded_bytes(&self, wire: usize) -> usize {
        let most = (self.max_section_bytes / EMPTY_FIELD_BYTES) * FIELD_OVERHEAD_BYTES;
        wire.saturating_mul(FIELD_OVERHEAD_BYTES).min(most)
    }

    fn on_client_frame(&mut self, event: FrameEvent) {
        match event {
            FrameEvent::FrameBegin(head) if head.frame_type == HEADERS => {
                let is_trailers = head.stream <= self.last_stream;
                self.last_stream = self.last_stream.max(head.stream);
                self.open_block = Some(OpenHeaderBlock {
                    stream: head.stream,
                    bytes: 0,
                    is_trailers,
                });
            }
            FrameEvent::Payload(head, bytes)
                if matches!(head.frame_type, HEADERS | CONTINUATION) =>
            {
                if let Some(block) = &mut self.open_block {
                    block.bytes += bytes;
                }
            }
            FrameEvent::FrameEnd(head) if matches!(head.frame_type, HEADERS | CONTINUATION) => {
                if head.flags & END_HEADERS != 0
                    && let Some(block) = self.open_block.take()
                    && block.is_trailers
                    && block.bytes > MAX_UNCHARGED_TRAILERS_BYTES
                {
                    let bytes = self.max_decoded_bytes(block.bytes);
                    *self.trailers.entry(block.stream).or_default() += bytes;
                }
            }
            FrameEvent::FrameEnd(head) if head.frame_type == RST_STREAM => {
                self.end_stream(head.stream)
            }
            FrameEvent::FrameBegin(_) | FrameEvent::Payload(..) | FrameEvent::FrameEnd(_) => {}
        }
    }

    fn on_waypoint_frame(&mut self, event: FrameEvent) {
        if let FrameEvent::FrameEnd(head) = event {
            // DATA and HEADERS share the END_STREAM flag.
            let is_end = head.frame_type <= HEADERS && head.flags & END_STREAM != 0;
            if is_end || head.frame_type == RST_STREAM {
                self.end_stream(head.stream);
            }
        }
    }

    fn end_stream(&mut self, stream: u32) {
        self.trailers.remove(&stream);
    }

    /// Returns an upper bound of the memory that all header blocks and trailers take.
    fn max_total_bytes(&self) -> usize {
        let open = self
            .open_block
            .map_or(0, |block| self.max_decoded_bytes(block.bytes));
        self.trailers.values().sum::<usize>() + open
    }
}

/// Client's HTTP/2 connection that parses the frames in both directions, charges memory for header blocks, and limits
/// their time.
#[derive(Debug)]
pub(in crate::http) struct HeaderBlockIo<IO> {
    io: IO,
    from_client: FrameParser,
    to_client: FrameParser,
    blocks: HeaderBlockTracker,
    limit: Duration,
    /// Deadline for the end of the current header block.
    deadline: Option<Pin<Box<Sleep>>>,
    memory: ConnectionMemory,
    permit: Option<MemoryPermit>,
    /// Bytes of header blocks read since the connection's task last yielded.
    block_bytes: usize,
    /// Whether the input is mostly header blocks; initially true. Reads are then small, so that little is decoded at
    /// once.
    is_input_dense: bool,
}

impl<IO> HeaderBlockIo<IO> {
    pub(in crate::http) fn new(
        io: IO,
        limit: Duration,
        most: usize,
        memory: ConnectionMemory,
    ) -> Self {
        Self {
            io,
            from_client: FrameParser::with_skipped_bytes(PREFACE.len()),
            to_client: FrameParser::with_skipped_bytes(0),
            blocks: HeaderBlockTracker {
                max_section_bytes: most,
                ..HeaderBlockTracker::default()
            },
            limit,
            deadline: None,
            memory,
            permit: None,
            block_bytes: 0,
            is_input_dense: true,
        }
    }

    /// Adjusts the memory permit to the size of the current header blocks and trailers.
    fn charge(&mut self) -> io::Result<()> {
        let bytes = self.blocks.max_total_bytes();
        let held = self.permit.as_ref().map_or(0, MemoryPermit::bytes);
        if bytes < held || bytes == 0 {
            self.permit = None;
        }
        let held = self.permit.as_ref().map_or(0, MemoryPermit::bytes);
        let taken = match &mut self.permit {
            _ if bytes == held => Ok(()),
            Some(permit) => self
                .memory
                .grow(ChargePurpose::HeaderBlock, permit, bytes - held),
            none => {
                let taken = self
                    .memory
                    .charge_request(ChargePurpose::HeaderBlock, bytes);
                taken.map(|permit| *none = Some(permit))
            }
        };
        taken.map_err(|_| io::Error::new(io::ErrorKind::QuotaExceeded, HeaderBlocksTooLarge))
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for HeaderBlockIo<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(until) = &mut this.deadline
            && until.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                HeaderTimeoutError,
            )));
        }
        if this.block_bytes >= MAX_BLOCK_BYTES_PER_POLL {
            this.block_bytes = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let read = match this.is_input_dense {
            true => poll_read_some(Pin::new(&mut this.io), cx, buf, DENSE_READ_BYTES),
            false => Pin::new(&mut this.io).poll_read(cx, buf),
        };
        let new = buf.filled().get(before..).unwrap_or_default();
        if new.is_empty() {
            this.block_bytes = 0;
            return read;
        }
        let (mut has_ended, mut block_bytes) = (false, 0);
        let blocks = &mut this.blocks;
        this.from_client.advance(new, |event| {
            blocks.on_client_frame(event);
            has_ended |= blocks.open_block.is_none();
            block_bytes += event.header_block_bytes();
        });
        this.block_bytes += block_bytes;
        this.is_input_dense = block_bytes > DENSE_BLOCK_BYTES;
        this.charge()?;
        if has_ended {
            this.deadline = None;
        }
        if this.blocks.open_block.is_some() && this.deadline.is_none() {
            let mut until = Box::pin(sleep(this.limit));
            // The reader also waits for the deadline.
            let _pending = until.as_mut().poll(cx);
            this.deadline = Some(until);
        }
        read
    }
}

/// Reads at most `most` bytes into the buffer.
fn poll_read_some<IO: AsyncRead>(
    io: Pin<&mut IO>,
    cx: &mut Context<'_>,
    buf: &mut ReadBuf<'_>,
    most: usize,
) -> Poll<io::Result<()>> {
    let room = buf.remaining().min(most);
    let unfilled = buf.initialize_unfilled_to(room);
    let mut some = ReadBuf::new(unfilled);
    let read = io.poll_read(cx, &mut some);
    let bytes = some.filled().len();
    buf.advance(bytes);
    read
}

impl<IO: AsyncWrite + Unpin> HeaderBlockIo<IO> {
    fn observe_written(&mut self, bytes: &[u8]) {
        let blocks = &mut self.blocks;
        self.to_client
            .advance(bytes, |event| blocks.on_waypoint_frame(event));
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for HeaderBlockIo<IO> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = std::task::ready!(Pin::new(&mut this.io).poll_write(cx, buf))?;
        this.observe_written(buf.get(..written).unwrap_or_default());
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
