//! Read buffer of a worker thread, shared by all its connections.
//!
//! A connection uses the buffer only while it reads, so idle ones need none. The bytes read are returned as
//! [`Bytes`]: small pieces are copied, so that a slow peer never pins the buffer; large ones are split off the buffer
//! without a copy.

use std::{
    cell::RefCell,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::AsyncRead;
use tokio_util::io::poll_read_buf;

/// Size of the read buffer and maximum of a single read, in bytes. It is large
/// for bulk transfers: per-read costs of the kernel (window update, scheduling)
/// exceed the cost of the bytes. Memory pages are used only as far as reads fill
/// them.
pub(crate) const SCRATCH_BYTES: usize = 512 << 10;
/// Maximum size of a read whose bytes are copied out of the buffer, in bytes; larger reads are split off without a
/// copy.
const MAX_COPIED_BYTES: usize = 8 << 10;

thread_local! {
    static SCRATCH_BUFFER: RefCell<BytesMut> = RefCell::new(BytesMut::new());
}

/// Reads once into the thread's buffer, at most `limit` bytes. An empty result means end of data.
pub(crate) fn poll_read<R: AsyncRead + Unpin>(
    reader: &mut R,
    cx: &mut Context<'_>,
    limit: usize,
) -> Poll<io::Result<Bytes>> {
    SCRATCH_BUFFER.with_borrow_mut(|buffer| {
        let n = ready!(poll_fill(buffer, reader, cx, limit))?;
        Poll::Ready(Ok(if n <= MAX_COPIED_BYTES {
            let out = Bytes::copy_from_slice(buffer);
            buffer.clear();
            out
        } else {
            buffer.split().freeze()
        }))
    })
}

/// Reads once and passes the bytes to `write`. Returns a copy of the bytes that `write` does not accept; `None` means
/// end of data.
pub(crate) fn poll_read_and_write<R: AsyncRead + Unpin>(
    reader: &mut R,
    cx: &mut Context<'_>,
    mut write: impl FnMut(&mut Context<'_>, &[u8]) -> Poll<io::Result<usize>>,
) -> Poll<io::Result<Option<(usize, Bytes)>>> {
    SCRATCH_BUFFER.with_borrow_mut(|buffer| {
        let n = ready!(poll_fill(buffer, reader, cx, SCRATCH_BYTES))?;
        if n == 0 {
            return Poll::Ready(Ok(None));
        }
        let mut taken = 0;
        let result = loop {
            let rest = buffer.get(taken..).unwrap_or_default();
            if rest.is_empty() {
                break Ok(Bytes::new());
            }
            match write(cx, rest) {
                Poll::Ready(Ok(0)) => break Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(m)) => taken += m,
                Poll::Ready(Err(error)) => break Err(error),
                Poll::Pending => break Ok(Bytes::copy_from_slice(rest)),
            }
        };
        buffer.clear();
        Poll::Ready(result.map(|rest| Some((n, rest))))
    })
}

fn poll_fill<R: AsyncRead + Unpin>(
    buffer: &mut BytesMut,
    reader: &mut R,
    cx: &mut Context<'_>,
    limit: usize,
) -> Poll<io::Result<usize>> {
    buffer.clear();
    if buffer.capacity() < limit {
        buffer.reserve(SCRATCH_BYTES);
    }
    poll_read_buf(Pin::new(reader), cx, &mut (&mut *buffer).limit(limit))
}
