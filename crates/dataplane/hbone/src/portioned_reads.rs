//! Transport from which HTTP/2 reads in portions.
//!
//! HTTP/2 parses everything that its transport has at one go. It counts small DATA frames that no stream has taken
//! against a limit for the whole connection, and ends the connection with ENHANCE_YOUR_CALM beyond it, although the
//! tasks that take them could not run meanwhile.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, ReadBuf};

/// Budget for small DATA frames that HTTP/2 grants a connection with a small window (h2's default). Otherwise it is
/// half the connection's window.
const MIN_FRAME_BUDGET: usize = 25_600;
/// Minimum budget for small DATA frames of HBONE connections. Portions are 40 KiB with it. With those of a connection
/// with small windows, some 1,000 bytes, every response would wake its task hundreds of times.
const MIN_HBONE_FRAME_BUDGET: usize = 2 << 20;
/// Maximum part of that budget that one byte on the wire can take: a DATA frame with one byte takes 10 bytes, and 255
/// of the budget.
const BUDGET_PER_BYTE: usize = 26;

/// Wrapper of an HTTP/2 connection's transport. After each portion of bytes it lets other tasks run, so that they take
/// the frames in it.
#[derive(Debug)]
pub struct PortionedReads<IO> {
    io: IO,
    /// Bytes in a portion: frames in it take at most half the budget of HTTP/2.
    portion: usize,
    /// Unread bytes of the current portion.
    left: usize,
    portion_ended: PortionEnd,
}

/// Flag that a connection's [`PortionedReads`] sets at the end of a portion.
#[derive(Clone, Debug, Default)]
pub(crate) struct PortionEnd(Arc<AtomicBool>);

impl PortionEnd {
    /// Returns whether a portion has ended since the last call.
    pub(crate) fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// Returns the budget for small DATA frames that HTTP/2 grants a connection with this receive window in bytes.
fn frame_budget(connection_window: u32) -> usize {
    let window = usize::try_from(connection_window).unwrap_or(usize::MAX);
    (window / 2).max(MIN_FRAME_BUDGET)
}

/// Returns the budget for small DATA frames of an HBONE connection with this receive window in bytes. The frames are
/// taken at the end of each portion, so that the budget bounds no memory of waiting ones.
pub(crate) fn hbone_frame_budget(connection_window: u32) -> usize {
    frame_budget(connection_window).max(MIN_HBONE_FRAME_BUDGET)
}

impl<IO> PortionedReads<IO> {
    /// Wraps the transport `io` of a connection with this receive window in bytes, by which HTTP/2 sets the budget for
    /// small frames.
    pub fn new(io: IO, connection_window: u32) -> Self {
        Self::with_budget(io, frame_budget(connection_window))
    }

    /// Wraps the transport `io` of a connection with this budget for small frames.
    pub(crate) fn with_budget(io: IO, budget: usize) -> Self {
        let portion = budget / 2 / BUDGET_PER_BYTE;
        Self {
            io,
            portion,
            left: portion,
            portion_ended: PortionEnd::default(),
        }
    }

    /// Returns the number of bytes in a portion.
    pub(crate) fn portion(&self) -> usize {
        self.portion
    }

    /// Returns the flag for the ends of portions.
    pub(crate) fn portion_end(&self) -> PortionEnd {
        self.portion_ended.clone()
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for PortionedReads<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.left == 0 {
            this.left = this.portion;
            this.portion_ended.0.store(true, Ordering::Relaxed);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let io = Pin::new(&mut this.io);
        let before = buf.filled().len();
        if buf.remaining() <= this.left {
            ready!(io.poll_read(cx, buf))?;
        } else {
            let mut portion = ReadBuf::new(buf.initialize_unfilled_to(this.left));
            ready!(io.poll_read(cx, &mut portion))?;
            let n = portion.filled().len();
            buf.advance(n);
        }
        let n = buf.filled().len().saturating_sub(before);
        this.left = this.left.saturating_sub(n);
        Poll::Ready(Ok(()))
    }
}

crate::pass_writes!(PortionedReads);
