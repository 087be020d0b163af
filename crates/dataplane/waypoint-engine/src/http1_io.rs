//! Writes parts of HTTP/1 messages that hyper does not write: trailers, and interim responses.
//!
//! hyper sends trailers only to clients whose request says `TE: trailers`, and only those that a `Trailer` header
//! announces. Applications send them regardless (gRPC-Web, checksums), and a proxy may forward them (RFC 9110, section
//! 6.5.1). [`TrailersBody`] removes trailers from a chunked body, and [`Http1Io`] writes them in place of the end of
//! the last chunk. hyper flushes its connection when it has written everything, so that the last bytes before a flush
//! are the end of the body.
//!
//! Interim responses (102, 103) are also written between two flushes, before their final response.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker, ready},
};

use bytes::{Buf as _, Bytes, BytesMut};
use http::HeaderMap;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// End of a chunked body without trailers.
const CHUNKED_END: &[u8] = b"0\r\n\r\n";
/// Maximum total size of the interim responses to one request.
const MAX_INTERIM_BYTES: usize = 16 << 10;
/// Maximum bytes that one write copies while trailers are pending.
const MAX_COPIED_BYTES: usize = 16 << 10;

/// Trailers and interim responses that are written to a connection between the bytes of hyper. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Http1Additions(Arc<SharedAdditions>);

#[derive(Debug, Default)]
struct SharedAdditions {
    state: Mutex<State>,
    /// Whether trailers or interim responses wait to be written.
    has_pending: AtomicBool,
    /// Whether hyper has written bytes since its last flush.
    has_unflushed_bytes: AtomicBool,
    /// Whether a request has no final response yet, so that its client may receive interim responses.
    accepts_interim: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    trailers: Option<Bytes>,
    interim: VecDeque<Bytes>,
    interim_bytes: usize,
    /// Waker of the connection's task, woken when an interim response is queued.
    connection_waker: Option<Waker>,
}

impl Http1Additions {
    /// Allows interim responses on the connection, since a request has begun.
    pub(crate) fn begin_interim(&self) {
        self.0.state.lock().interim_bytes = 0;
        self.0.accepts_interim.store(true, Relaxed);
    }

    /// Disallows interim responses on the connection, since the final response is about to be written.
    pub(crate) fn end_interim(&self) {
        let mut state = self.0.state.lock();
        self.0.accepts_interim.store(false, Relaxed);
        // Interim responses would be written after bytes of the response.
        if self.0.has_unflushed_bytes.load(Relaxed) {
            state.interim.clear();
        }
    }

    /// Queues an interim response for the client, if the request has no final response yet and its interim responses
    /// are within the limit.
    pub(crate) fn add_interim(&self, status: http::StatusCode, headers: &HeaderMap) {
        let mut bytes = BytesMut::new();
        let reason = status.canonical_reason().unwrap_or_default();
        bytes.extend_from_slice(format!("HTTP/1.1 {} {reason}\r\n", status.as_str()).as_bytes());
        encode_headers(headers, &mut bytes);
        bytes.extend_from_slice(b"\r\n");
        let mut state = self.0.state.lock();
        let total = state.interim_bytes.saturating_add(bytes.len());
        if !self.0.accepts_interim.load(Relaxed) || total > MAX_INTERIM_BYTES {
            return;
        }
        state.interim_bytes = total;
        state.interim.push_back(bytes.freeze());
        self.0.has_pending.store(true, Relaxed);
        let task = state.connection_waker.take();
        drop(state);
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Queues trailers that end the chunked body which is being written.
    fn queue_trailers(&self, trailers: &HeaderMap) {
        let mut bytes = BytesMut::new();
        encode_headers(trailers, &mut bytes);
        self.0.state.lock().trailers = Some(bytes.freeze());
        self.0.has_pending.store(true, Relaxed);
    }
}

fn encode_headers(headers: &HeaderMap, bytes: &mut BytesMut) {
    for (name, value) in headers {
        bytes.extend_from_slice(name.as_str().as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
}

/// Chunked HTTP/1 body that hands its trailers to [`Http1Io`] instead of hyper.
#[derive(Debug)]
pub(crate) struct TrailersBody<B> {
    body: B,
    /// Receiver of the trailers; `None` if the body has a known length, with which HTTP/1 has no trailers.
    additions: Option<Http1Additions>,
    has_ended: bool,
}

impl<B: HttpBody> TrailersBody<B> {
    /// Wraps a body. Its trailers are sent only if it is chunked: its length is unknown and `has_length` (a
    /// `Content-Length` header) is false.
    pub(crate) fn new(body: B, additions: &Http1Additions, has_length: bool) -> Self {
        let is_chunked = !has_length && body.size_hint().exact().is_none();
        Self {
            body,
            additions: is_chunked.then(|| additions.clone()),
            has_ended: false,
        }
    }
}

impl<B: HttpBody + Unpin> HttpBody for TrailersBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.get_mut();
        if this.has_ended {
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        let trailers = match &frame {
            Some(Ok(frame)) => frame.trailers_ref(),
            Some(Err(_)) | None => None,
        };
        let (Some(trailers), Some(additions)) = (trailers, &this.additions) else {
            return Poll::Ready(frame);
        };
        additions.queue_trailers(trailers);
        this.has_ended = true;
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Connection that writes [`Http1Additions`] between the bytes of hyper.
#[derive(Debug)]
pub(crate) struct Http1Io<IO> {
    io: IO,
    additions: Http1Additions,
    /// Bytes to write before hyper's next output.
    pending_output: BytesMut,
    /// Last bytes of a chunked body with pending trailers, held back until hyper flushes: they may be [`CHUNKED_END`].
    /// Never longer than that.
    held_back: BytesMut,
}

impl<IO> Http1Io<IO> {
    pub(crate) fn new(io: IO, additions: Http1Additions) -> Self {
        Self {
            io,
            additions,
            pending_output: BytesMut::new(),
            held_back: BytesMut::new(),
        }
    }

    /// Moves queued interim responses to the output, before hyper's next bytes.
    fn write_queued_interim(&mut self) {
        let mut state = self.additions.0.state.lock();
        for response in state.interim.drain(..) {
            self.pending_output.extend_from_slice(&response);
        }
    }

    /// Writes the pending trailers in place of [`CHUNKED_END`], if the held bytes are the end of a body.
    fn end_body(&mut self) {
        let Some(trailers) = self.additions.0.state.lock().trailers.take() else {
            return;
        };
        if &self.held_back[..] == CHUNKED_END {
            self.pending_output.extend_from_slice(b"0\r\n");
            self.pending_output.extend_from_slice(&trailers);
            self.pending_output.extend_from_slice(b"\r\n");
        } else {
            self.pending_output.extend_from_slice(&self.held_back);
        }
        self.held_back.clear();
    }
}

impl<IO: AsyncWrite + Unpin> Http1Io<IO> {
    fn poll_write_output(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.pending_output.is_empty() {
            let n = ready!(Pin::new(&mut self.io).poll_write(cx, &self.pending_output))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.pending_output.advance(n);
        }
        Poll::Ready(Ok(()))
    }

    /// Writes the pending bytes. Returns true if hyper's next bytes may be written directly, and false if they may
    /// contain the end of a body with trailers.
    fn poll_write_pending(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let shared = &self.additions.0;
        let was_flushed = !shared.has_unflushed_bytes.swap(true, Relaxed);
        if shared.has_pending.load(Relaxed) && was_flushed {
            self.write_queued_interim();
        }
        ready!(self.poll_write_output(cx))?;
        let shared = &self.additions.0;
        let has_trailers =
            || shared.has_pending.load(Relaxed) && shared.state.lock().trailers.is_some();
        Poll::Ready(Ok(self.held_back.is_empty() && !has_trailers()))
    }

    /// Copies bytes of a body whose trailers are pending, and holds back the last ones, which may be the end of the
    /// body. Returns the number of bytes taken.
    fn copy_and_hold_back(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.get(..MAX_COPIED_BYTES).unwrap_or(bytes);
        self.held_back.extend_from_slice(taken);
        let rest = self.held_back.len().saturating_sub(CHUNKED_END.len());
        let rest = self.held_back.split_to(rest);
        self.pending_output.extend_from_slice(&rest);
        taken.len()
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Http1Io<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_read(cx, buf)
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Http1Io<IO> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if ready!(this.poll_write_pending(cx))? {
            return Pin::new(&mut this.io).poll_write(cx, buf);
        }
        Poll::Ready(Ok(this.copy_and_hold_back(buf)))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if ready!(this.poll_write_pending(cx))? {
            return Pin::new(&mut this.io).poll_write_vectored(cx, bufs);
        }
        let first = bufs.iter().find(|buf| !buf.is_empty());
        Poll::Ready(Ok(first.map_or(0, |buf| this.copy_and_hold_back(buf))))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.additions.0.has_pending.swap(false, Relaxed) {
            this.end_body();
            this.write_queued_interim();
        }
        ready!(this.poll_write_output(cx))?;
        let shared = &this.additions.0;
        shared.has_unflushed_bytes.store(false, Relaxed);
        if shared.accepts_interim.load(Relaxed) {
            shared.state.lock().connection_waker = Some(cx.waker().clone());
        }
        Pin::new(&mut this.io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_write_output(cx))?;
        Pin::new(&mut this.io).poll_shutdown(cx)
    }
}
