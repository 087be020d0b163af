//! How long a client of HTTP/1 may take over the header section of a request, from its first byte on. Between
//! requests, and while one is served, a connection may be quiet.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// The header section of a request did not end in time.
#[derive(Debug, thiserror::Error)]
#[error("the header section of a request did not end in time")]
pub(super) struct TooSlow;

/// What is going on on a connection. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace(Arc<Requests>);

#[derive(Debug, Default)]
struct Requests {
    /// All so far.
    begun: AtomicUsize,
    /// Whose answers are not sent yet.
    served: AtomicUsize,
}

impl Pace {
    /// A request's header section is there.
    pub(super) fn begin(&self) -> Serving {
        self.0.begun.fetch_add(1, Relaxed);
        self.0.served.fetch_add(1, Relaxed);
        Serving(self.0.clone())
    }
}

/// A request that is served, until its answer is sent.
#[derive(Debug)]
pub(super) struct Serving(Arc<Requests>);

impl Serving {
    /// The connection becomes another protocol's.
    pub(super) fn for_good(self) {
        std::mem::forget(self);
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.served.fetch_sub(1, Relaxed);
    }
}

/// The connection.
#[derive(Debug)]
pub(super) struct Paced<IO> {
    io: IO,
    pace: Pace,
    limit: Duration,
    /// Until when a header section may go on, and after how many requests it began.
    until: Option<(usize, Pin<Box<Sleep>>)>,
}

impl<IO> Paced<IO> {
    pub(super) fn new(io: IO, pace: Pace, limit: Duration) -> Self {
        Self {
            io,
            pace,
            limit,
            until: None,
        }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Paced<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let begun = this.pace.0.begun.load(Relaxed);
        let is_served = this.pace.0.served.load(Relaxed) > 0;
        this.until
            .take_if(|(number, _)| is_served || *number != begun);
        if let Some((_, until)) = &mut this.until
            && until.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, TooSlow)));
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut this.io).poll_read(cx, buf);
        if !is_served && buf.filled().len() > before {
            let until = || (begun, Box::pin(sleep(this.limit)));
            this.until.get_or_insert_with(until);
        }
        read
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Paced<IO> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

/// An answer's body, with which the request ends.
#[derive(Debug)]
pub(super) struct Answered<B> {
    pub(super) body: B,
    pub(super) _serving: Option<Serving>,
}

impl<B: HttpBody + Unpin> HttpBody for Answered<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
