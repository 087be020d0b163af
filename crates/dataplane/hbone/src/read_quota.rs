//! Quota of the bytes that HTTP/2 may parse before the frames in them are taken by their tunnels.
//!
//! HTTP/2 parses everything that its transport has, at one go, and counts each small DATA frame until a tunnel takes it.
//! Tunnels take theirs only when the connection's driver has returned, so the driver lets HTTP/2 read in portions.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::byte_receiver::ByteReceivers;

/// Budget for small DATA frames that HTTP/2 grants a connection with the smallest windows (h2's default). Otherwise it
/// is half the connection's window.
const MIN_FRAME_BUDGET: usize = 25_600;
/// Maximum part of that budget that one byte on the wire can take: a DATA frame with one byte takes 10 bytes, and 255
/// of the budget.
const BUDGET_PER_BYTE: usize = 26;

/// Quota of one connection, shared by its driver and its [`LimitedReads`].
#[derive(Clone, Debug)]
pub(crate) struct ReadQuota {
    left: Arc<AtomicUsize>,
    portion: usize,
}

impl ReadQuota {
    /// Creates the quota for a connection with this receive window in bytes: frames of one portion take at most half
    /// the budget of HTTP/2.
    pub(crate) fn new(connection_window: u32) -> Self {
        let window = usize::try_from(connection_window).unwrap_or(usize::MAX);
        let budget = (window / 2).max(MIN_FRAME_BUDGET);
        let portion = budget / 2 / BUDGET_PER_BYTE;
        Self {
            left: Arc::new(AtomicUsize::new(portion)),
            portion,
        }
    }

    /// Takes all received frames and permits the next portion, if HTTP/2 has read this one. The driver calls it after
    /// HTTP/2 has returned, and continues after the tasks that received frames have woken.
    pub(crate) fn renew_if_exhausted(&self, cx: &Context<'_>, receivers: &ByteReceivers) {
        if self.left.load(Ordering::Relaxed) == 0 {
            receivers.take_received();
            self.left.store(self.portion, Ordering::Relaxed);
            cx.waker().wake_by_ref();
        }
    }
}

/// Transport of a connection that returns `Pending` when the connection's quota is exhausted, without a wake-up: the
/// connection's driver continues after it has renewed the quota.
#[derive(Debug)]
pub(crate) struct LimitedReads<IO> {
    io: IO,
    quota: ReadQuota,
}

impl<IO> LimitedReads<IO> {
    /// Wraps the transport `io`.
    pub(crate) fn new(io: IO, quota: &ReadQuota) -> Self {
        Self {
            io,
            quota: quota.clone(),
        }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for LimitedReads<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { io, quota } = self.get_mut();
        let left = quota.left.load(Ordering::Relaxed);
        if left == 0 {
            return Poll::Pending;
        }
        let before = buf.filled().len();
        if buf.remaining() <= left {
            ready!(Pin::new(io).poll_read(cx, buf))?;
        } else {
            let mut portion = ReadBuf::new(buf.initialize_unfilled_to(left));
            ready!(Pin::new(io).poll_read(cx, &mut portion))?;
            let n = portion.filled().len();
            buf.advance(n);
        }
        let n = buf.filled().len().saturating_sub(before);
        quota.left.store(left.saturating_sub(n), Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for LimitedReads<IO> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}
