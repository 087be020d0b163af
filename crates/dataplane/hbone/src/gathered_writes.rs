//! Transport that gathers what HTTP/2 writes while its connection is driven.
//!
//! HTTP/2 writes and flushes each large DATA frame on its own, which costs a system call and two TLS records: a frame of
//! 16 KiB fills one, and its header takes another. [`GatheredWrites`] copies such frames one after the other to a
//! buffer, and writes it when it is full or the connection has nothing more to send.

use std::{
    cell::RefCell,
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Size of the buffer in bytes: four full TLS records.
const GATHERED_BYTES: usize = 64 << 10;
/// Minimum size of a write that is gathered, in bytes. Smaller ones mostly are all that their connection sends at a
/// time, and are written without a copy.
const MIN_GATHERED_WRITE_BYTES: usize = 4 << 10;
/// Maximum free buffers that a thread keeps for later writes.
const MAX_FREE_BUFFERS: usize = 2;

thread_local! {
    static FREE_BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Wrapper of an HTTP/2 connection's transport. While its [`WriteGatherer`] polls the connection, flushes leave gathered
/// bytes in the buffer.
#[derive(Debug)]
pub(crate) struct GatheredWrites<IO> {
    io: IO,
    /// Gathered bytes, of which the first `written` have been written. A connection without any holds no buffer.
    buffer: Vec<u8>,
    written: usize,
    gatherer: WriteGatherer,
}

/// Handle of a connection's [`GatheredWrites`], by which the connection's driver polls it.
#[derive(Clone, Debug, Default)]
pub(crate) struct WriteGatherer(Arc<GathererState>);

#[derive(Debug, Default)]
struct GathererState {
    /// Whether flushes leave gathered bytes in the buffer.
    is_gathering: AtomicBool,
    has_gathered: AtomicBool,
}

impl WriteGatherer {
    /// Polls the connection by `poll` while its writes are gathered. If that leaves bytes in the buffer, polls it once
    /// more, by which it writes them.
    pub(crate) fn poll<T>(&self, mut poll: impl FnMut() -> Poll<T>) -> Poll<T> {
        self.0.is_gathering.store(true, Ordering::Relaxed);
        let polled = poll();
        self.0.is_gathering.store(false, Ordering::Relaxed);
        if polled.is_pending() && self.0.has_gathered.load(Ordering::Relaxed) {
            return poll();
        }
        polled
    }

    fn is_gathering(&self) -> bool {
        self.0.is_gathering.load(Ordering::Relaxed)
    }
}

impl<IO> GatheredWrites<IO> {
    /// Wraps the transport `io` of a connection.
    pub(crate) fn new(io: IO) -> Self {
        Self {
            io,
            buffer: Vec::new(),
            written: 0,
            gatherer: WriteGatherer::default(),
        }
    }

    /// Returns the handle by which the connection must be polled.
    pub(crate) fn gatherer(&self) -> WriteGatherer {
        self.gatherer.clone()
    }

    /// Copies as much of `slices` as the buffer has room for, and returns the number of bytes.
    fn gather(&mut self, slices: &[IoSlice<'_>]) -> usize {
        if self.buffer.capacity() == 0 {
            let free = FREE_BUFFERS.with_borrow_mut(Vec::pop);
            self.buffer = free.unwrap_or_else(|| Vec::with_capacity(GATHERED_BYTES));
        }
        let before = self.buffer.len();
        for slice in slices {
            let room = GATHERED_BYTES.saturating_sub(self.buffer.len());
            self.buffer
                .extend_from_slice(slice.get(..room).unwrap_or(slice));
        }
        self.gatherer.0.has_gathered.store(true, Ordering::Relaxed);
        self.buffer.len() - before
    }
}

impl<IO: AsyncWrite + Unpin> GatheredWrites<IO> {
    fn poll_write_gathered(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.buffer.get(self.written..)
            && !rest.is_empty()
        {
            let n = ready!(Pin::new(&mut self.io).poll_write(cx, rest))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += n;
        }
        self.written = 0;
        self.gatherer.0.has_gathered.store(false, Ordering::Relaxed);
        let mut free = std::mem::take(&mut self.buffer);
        if free.capacity() > 0 {
            free.clear();
            FREE_BUFFERS.with_borrow_mut(|all| {
                if all.len() < MAX_FREE_BUFFERS {
                    all.push(free);
                }
            });
        }
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for GatheredWrites<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_read(cx, buf)
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for GatheredWrites<IO> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let bytes = slices.iter().map(|slice| slice.len()).sum();
        let is_gathering = this.gatherer.is_gathering();
        if !is_gathering || this.buffer.len() >= GATHERED_BYTES {
            ready!(this.poll_write_gathered(cx))?;
        }
        let is_alone =
            this.buffer.is_empty() && !(MIN_GATHERED_WRITE_BYTES..GATHERED_BYTES).contains(&bytes);
        if !is_gathering || is_alone {
            return Pin::new(&mut this.io).poll_write_vectored(cx, slices);
        }
        let n = this.gather(slices);
        if this.buffer.len() >= GATHERED_BYTES
            && let Poll::Ready(Err(error)) = this.poll_write_gathered(cx)
        {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(n))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.gatherer.is_gathering() && !this.buffer.is_empty() {
            return Poll::Ready(Ok(()));
        }
        ready!(this.poll_write_gathered(cx))?;
        Pin::new(&mut this.io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_write_gathered(cx))?;
        Pin::new(&mut this.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// Transport that records the size of each write and the number of flushes, and has room for a number of bytes.
    #[derive(Debug, Default)]
    struct Transport {
        writes: Vec<usize>,
        bytes: Vec<u8>,
        flushes: usize,
        room: usize,
    }

    impl AsyncWrite for Transport {
        fn poll_write(
            self: Pin<&mut Self>,
            _cx: &mut Context<'_>,
            buf: &[u8],
        ) -> Poll<io::Result<usize>> {
            let this = self.get_mut();
            let n = buf.len().min(this.room);
            if n == 0 {
                return Poll::Pending;
            }
            this.room -= n;
            this.writes.push(n);
            this.bytes.extend_from_slice(buf.get(..n).unwrap());
            Poll::Ready(Ok(n))
        }

        fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.get_mut().flushes += 1;
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.poll_flush(cx)
        }
    }

    fn gathered(room: usize) -> GatheredWrites<Transport> {
        GatheredWrites::new(Transport {
            room,
            ..Transport::default()
        })
    }

    /// Drives a connection that writes frames with these sizes, flushes each, and has then nothing to do. Returns the
    /// number of bytes that the transport took.
    fn drive(io: &mut GatheredWrites<Transport>, frames: &[usize]) -> usize {
        let gatherer = io.gatherer();
        let mut cx = Context::from_waker(Waker::noop());
        let mut taken = 0;
        let mut frames = frames.iter();
        let polled: Poll<()> = gatherer.poll(|| {
            for bytes in frames.by_ref() {
                let frame: Vec<u8> = (0..*bytes)
                    .map(|n| u8::try_from(n % 251).unwrap())
                    .collect();
                let (head, body) = frame.split_at(9.min(*bytes));
                let slices = [IoSlice::new(head), IoSlice::new(body)];
                match Pin::new(&mut *io).poll_write_vectored(&mut cx, &slices) {
                    Poll::Ready(n) => taken += n.unwrap(),
                    Poll::Pending => return Poll::Pending,
                }
                let _flushed = Pin::new(&mut *io).poll_flush(&mut cx);
            }
            let _flushed = Pin::new(&mut *io).poll_flush(&mut cx);
            Poll::Pending
        });
        assert!(polled.is_pending());
        taken
    }

    #[test]
    fn large_frames_of_one_poll_are_written_together() {
        let mut io = gathered(usize::MAX);
        assert_eq!(drive(&mut io, &[16_393, 16_393, 100]), 32_886);
        assert_eq!(io.io.writes, [32_886]);
        assert!(io.io.flushes > 0);
        // The next poll begins anew, without a buffer.
        assert_eq!(io.buffer.capacity(), 0);
        assert_eq!(drive(&mut io, &[16_393]), 16_393);
        assert_eq!(io.io.writes, [32_886, 16_393]);
    }

    #[test]
    fn full_buffer_is_written_and_its_rest_follows() {
        let mut io = gathered(usize::MAX);
        // HTTP/2 writes the rest of a frame of which only a part was taken.
        assert_eq!(drive(&mut io, &[16_393; 4]), GATHERED_BYTES);
        assert_eq!(io.io.writes, [GATHERED_BYTES]);
        assert_eq!(drive(&mut io, &[16_393; 3]), 3 * 16_393);
        assert_eq!(io.io.writes, [GATHERED_BYTES, 3 * 16_393]);
    }

    #[test]
    fn small_and_very_large_writes_are_not_copied() {
        let mut io = gathered(usize::MAX);
        drive(&mut io, &[50, 13]);
        // The transport takes the first part of a vectored write.
        assert_eq!(io.io.writes, [9, 9]);
        drive(&mut io, &[GATHERED_BYTES + 9]);
        assert_eq!(io.io.writes, [9, 9, 9]);
    }

    #[test]
    fn blocked_transport_gets_the_bytes_later_and_in_order() {
        let mut io = gathered(20_000);
        assert_eq!(drive(&mut io, &[16_393, 16_393]), 32_786);
        assert_eq!(io.io.writes, [20_000]);
        // Full, so that HTTP/2 has to wait.
        assert_eq!(
            drive(&mut io, &[GATHERED_BYTES, 1]),
            GATHERED_BYTES - 32_786
        );
        io.io.room = usize::MAX;
        assert_eq!(drive(&mut io, &[]), 0);
        let frame = |bytes: usize| (0..bytes).map(|n| u8::try_from(n % 251).unwrap());
        let rest = frame(GATHERED_BYTES).take(GATHERED_BYTES - 32_786);
        let expected: Vec<u8> = frame(16_393).chain(frame(16_393)).chain(rest).collect();
        assert!(io.io.bytes == expected);
    }

    #[test]
    fn shutdown_writes_what_was_gathered() {
        let mut io = gathered(usize::MAX);
        let mut cx = Context::from_waker(Waker::noop());
        let ended: Poll<()> = io.gatherer().poll(|| {
            let written = Pin::new(&mut io).poll_write(&mut cx, &[1; 16_393]);
            assert!(matches!(written, Poll::Ready(Ok(16_393))));
            assert!(Pin::new(&mut io).poll_shutdown(&mut cx).is_ready());
            Poll::Ready(())
        });
        assert!(ended.is_ready());
        assert_eq!(io.io.writes, [16_393]);
    }
}
