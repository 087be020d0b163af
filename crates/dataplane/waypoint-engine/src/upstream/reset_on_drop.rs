//! Resets a connection to an endpoint that is dropped during a request, so that the endpoint learns at once that nobody
//! waits for the response, even if it has not read all of the request.
//!
//! hyper flushes its buffers before it closes a connection, and would wait indefinitely for an endpoint that reads
//! nothing. Writes to the endpoint of an abandoned request therefore fail instead of waiting.
//!
//! An endpoint may respond to a request before it has read all of it, and close the connection (413, for instance).
//! hyper would drop the connection when writing fails, before it has read the response. A request whose endpoint reads
//! no more of it therefore waits until the connection has been read to its end.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Instant,
};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Stream;
use crate::{fair_share::CurrentShare, http1_io::Http1Additions};

/// Shared state of an HTTP/1.1 connection: the progress of its current request, the bytes that are inserted into hyper's
/// output, and the scheduling share that its CPU time is charged to. Clones refer to the same state.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionActivity(Arc<Mutex<State>>, Http1Additions, CurrentShare);

#[derive(Debug, Default)]
struct State {
    /// Number of requests that the connection has carried.
    request_count: u64,
    is_in_use: bool,
    /// Whether the client no longer waits for the response to the current request.
    is_abandoned: bool,
    /// Waker of the connection's task, while a write waits for the endpoint.
    write_waker: Option<Waker>,
    /// Time at which the connection ended.
    ended_at: Option<Instant>,
}

/// Guard of the current request on a connection. If all clones are dropped before [`ConnectionActivity::end_request`],
/// the request is abandoned.
#[derive(Clone, Debug)]
pub(crate) struct RequestGuard {
    #[expect(dead_code, reason = "dropping it abandons the request")]
    abandon_on_drop: Arc<AbandonOnDrop>,
}

#[derive(Debug)]
struct AbandonOnDrop {
    activity: ConnectionActivity,
    /// Number of the guarded request on its connection.
    request_number: u64,
}

impl ConnectionActivity {
    /// Returns the queue of trailers and interim responses that are written between hyper's bytes.
    pub(crate) fn additions(&self) -> &Http1Additions {
        &self.1
    }

    /// Returns the CPU share of the caller whose request uses the connection.
    pub(crate) fn share(&self) -> &CurrentShare {
        &self.2
    }

    /// Records that the next request on the connection begins. Dropping the returned guard before the request's end
    /// abandons it.
    pub(crate) fn begin_request(&self) -> RequestGuard {
        let mut state = self.0.lock();
        state.request_count += 1;
        state.is_in_use = true;
        state.is_abandoned = false;
        RequestGuard {
            abandon_on_drop: Arc::new(AbandonOnDrop {
                activity: self.clone(),
                request_number: state.request_count,
            }),
        }
    }

    /// Records the end of the request, so that the connection may be reused or upgraded.
    pub(crate) fn end_request(&self) {
        self.0.lock().is_in_use = false;
    }

    /// Records that the connection has ended.
    pub(crate) fn record_end(&self) {
        self.0.lock().ended_at = Some(Instant::now());
    }

    /// Returns the time at which the connection ended; `None` if it is open.
    pub(crate) fn ended_at(&self) -> Option<Instant> {
        self.0.lock().ended_at
    }

    /// Whether a request is active on the connection.
    fn is_in_use(&self) -> bool {
        self.0.lock().is_in_use
    }

    /// Fails a pending write if the current request is abandoned; otherwise registers the task, to be woken when it is.
    fn fail_if_abandoned<T>(
        &self,
        cx: &Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_pending() {
            let mut state = self.0.lock();
            if state.is_abandoned {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            state.write_waker = Some(cx.waker().clone());
        }
        written
    }
}

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        let mut state = self.activity.0.lock();
        if !state.is_in_use || state.request_count != self.request_number {
            return;
        }
        state.is_abandoned = true;
        let writer = state.write_waker.take();
        drop(state);
        if let Some(writer) = writer {
            writer.wake();
        }
    }
}

/// Connection to an endpoint that is reset when it is dropped during a request.
#[derive(Debug)]
pub(crate) struct ResetOnDropStream {
    stream: Stream,
    activity: ConnectionActivity,
    /// Whether the endpoint has stopped reading the request.
    is_write_broken: bool,
}

impl ResetOnDropStream {
    pub(crate) fn new(stream: Stream, in_use: ConnectionActivity) -> Self {
        Self {
            stream,
            activity: in_use,
            is_write_broken: false,
        }
    }

    /// Turns a failed write of the current request into a pending one, so that hyper still reads the response. The
    /// connection ends when the response has been read, or the request is abandoned.
    fn defer_write_failure<T>(
        &mut self,
        cx: &Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let written = match written {
            Poll::Ready(Err(error)) if self.activity.is_in_use() => {
                tracing::debug!(%error, "an endpoint takes no more of a request");
                self.is_write_broken = true;
                Poll::Pending
            }
            other => other,
        };
        self.activity.fail_if_abandoned(cx, written)
    }
}

impl Drop for ResetOnDropStream {
    fn drop(&mut self) {
        if self.activity.0.lock().is_in_use {
            self.stream.reset_on_drop();
        }
    }
}

impl AsyncRead for ResetOnDropStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for ResetOnDropStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.is_write_broken {
            return this.activity.fail_if_abandoned(cx, Poll::Pending);
        }
        let written = Pin::new(&mut this.stream).poll_write(cx, buf);
        this.defer_write_failure(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.is_write_broken {
            return this.activity.fail_if_abandoned(cx, Poll::Pending);
        }
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        this.defer_write_failure(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.is_write_broken {
            return this.activity.fail_if_abandoned(cx, Poll::Pending);
        }
        let written = Pin::new(&mut this.stream).poll_flush(cx);
        this.defer_write_failure(cx, written)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.is_write_broken {
            return Poll::Ready(Ok(()));
        }
        let written = Pin::new(&mut this.stream).poll_shutdown(cx);
        this.activity.fail_if_abandoned(cx, written)
    }
}
