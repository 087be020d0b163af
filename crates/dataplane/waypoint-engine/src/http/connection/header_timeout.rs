//! Timeout for the header section of an HTTP/1 request, from its first byte. A connection may be idle between requests,
//! and while one is served.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use hyper::body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, ReadBuf},
    time::{Sleep, sleep},
};

use super::overload::HeaderBlocksTooLarge;
use crate::{
    http::body::count::BodyCounter,
    http1_io::{Http1Additions, TrailersBody},
    memory::{ChargePurpose, ConnectionMemory, MemoryPermit},
};

/// Error of an HTTP/1 request whose header section was not complete in time.
#[derive(Debug, thiserror::Error)]
#[error("the header section of a request did not end in time")]
pub(in crate::http) struct HeaderTimeoutError;

/// State of the requests on one HTTP/1 connection, which timeouts and closing depend on. Clones share it.
#[derive(Clone, Debug, Default)]
pub(in crate::http) struct RequestProgress(Arc<RequestCounters>);

#[derive(Debug, Default)]
struct RequestCounters {
    /// Number of requests received so far.
    received_requests: AtomicUsize,
    /// Number of requests whose responses have not been sent completely.
    pending_responses: AtomicUsize,
    /// Counter of the latest request's body, which shows whether it has been read completely.
    body_counter: Mutex<Option<BodyCounter>>,
    /// Whether the connection has been upgraded to another protocol.
    is_upgraded: AtomicBool,
    /// Trailers and interim responses that are written between hyper's bytes.
    additions: Http1Additions,
}

impl RequestProgress {
    /// Records that the header section of a request is complete.
    pub(in crate::http) fn begin_request(&self) -> ServedRequest {
        self.0.received_requests.fetch_add(1, Relaxed);
        self.0.pending_responses.fetch_add(1, Relaxed);
        ServedRequest(self.0.clone())
    }

    /// Returns the queue of trailers and interim responses that are written between hyper's bytes.
    pub(in crate::http) fn additions(&self) -> &Http1Additions {
        &self.0.additions
    }

    /// Sets the counter of the latest request's body.
    pub(in crate::http) fn set_body_counter(&self, body: BodyCounter) {
        *self.0.body_counter.lock() = Some(body);
    }

    /// Whether a response is pending on the connection.
    pub(in crate::http) fn is_serving(&self) -> bool {
        self.0.pending_responses.load(Relaxed) > 0 && !self.0.is_upgraded.load(Relaxed)
    }

    /// Whether the latest request's body has not been read to its end.
    pub(in crate::http) fn has_unread_request_body(&self) -> bool {
        let body = self.0.body_counter.lock();
        body.as_ref().is_some_and(|body| !body.is_complete())
    }

    /// Whether the latest request's body has been read to its end.
    pub(in crate::http) fn has_read_request(&self) -> bool {
        let body = self.0.body_counter.lock();
        body.as_ref().is_some_and(BodyCounter::is_complete)
    }
}

/// Guard of a request in progress, held until its response has been sent.
#[derive(Debug)]
pub(in crate::http) struct ServedRequest(Arc<RequestCounters>);

impl ServedRequest {
    /// Disables the header timeout of the connection permanently, since the connection is upgraded.
    pub(in crate::http) fn disable_header_timeout(self) {
        self.0.is_upgraded.store(true, Relaxed);
        std::mem::forget(self);
    }
}

impl Drop for ServedRequest {
    fn drop(&mut self) {
        self.0.pending_responses.fetch_sub(1, Relaxed);
    }
}

/// HTTP/1 connection with a timeout for header sections.
#[derive(Debug)]
pub(in crate::http) struct HeaderTimeoutIo<IO> {
    io: IO,
    progress: RequestProgress,
    limit: Duration,
    /// Timer of the current header section, with the number of requests received before it.
    deadline: Option<(usize, Pin<Box<Sleep>>)>,
    memory: ConnectionMemory,
    /// Memory permit of the incomplete header section.
    section_permit: Option<MemoryPermit>,
}

impl<IO> HeaderTimeoutIo<IO> {
    pub(in crate::http) fn new(
        io: IO,
        pacing: RequestProgress,
        limit: Duration,
        memory: ConnectionMemory,
    ) -> Self {
        Self {
            io,
            progress: pacing,
            limit,
            deadline: None,
            memory,
            section_permit: None,
        }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for HeaderTimeoutIo<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let begun = this.progress.0.received_requests.load(Relaxed);
        let is_served = this.progress.0.pending_responses.load(Relaxed) > 0;
        this.deadline
            .take_if(|(number, _)| is_served || *number != begun);
        if this.deadline.is_none() {
            this.section_permit = None;
        }
        if let Some((_, until)) = &mut this.deadline
            && until.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                HeaderTimeoutError,
            )));
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut this.io).poll_read(cx, buf);
        let new = buf.filled().len() - before;
        if !is_served && new > 0 {
            let until = || (begun, Box::pin(sleep(this.limit)));
            this.deadline.get_or_insert_with(until);
            let charged = match &mut this.section_permit {
                Some(permit) => this.memory.grow(ChargePurpose::HeaderBlock, permit, new),
                none => {
                    let taken = this.memory.charge_request(ChargePurpose::HeaderBlock, new);
                    taken.map(|permit| *none = Some(permit))
                }
            };
            if charged.is_err() {
                let error = io::Error::new(io::ErrorKind::QuotaExceeded, HeaderBlocksTooLarge);
                return Poll::Ready(Err(error));
            }
        }
        read
    }
}

// Writes of several buffers are supported, as they are by tunnels. hyper then keeps the buffers of a body, which are charged
// until they are sent, instead of copying them into its own.
ambit_hbone::pass_writes!(HeaderTimeoutIo);

/// Response body that holds the guard of its request.
#[derive(Debug)]
pub(in crate::http) struct GuardedBody<B> {
    pub(in crate::http) body: TrailersBody<B>,
    pub(in crate::http) _serving: Option<ServedRequest>,
    pub(in crate::http) _permit: Option<MemoryPermit>,
}

impl<B: HttpBody + Unpin> HttpBody for GuardedBody<B> {
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::memory::Memory;

    fn new_connection<IO>(io: IO, process: usize) -> (Memory, HeaderTimeoutIo<IO>) {
        let memory = Memory::new(process, Arc::default());
        let connection = memory.connection(None, [10, 0, 0, 1].into());
        let pacing = RequestProgress::default();
        (
            memory,
            HeaderTimeoutIo::new(io, pacing, Duration::from_secs(60), connection),
        )
    }

    #[tokio::test]
    async fn header_section_is_charged_until_its_request_begins() {
        let (mut near, far) = tokio::io::duplex(1 << 20);
        let (memory, mut paced) = new_connection(far, 3 << 10);
        near.write_all(&[b'h'; 900]).await.unwrap();
        paced.read_exact(&mut [0; 900]).await.unwrap();
        assert_eq!(memory.charged_bytes(), 900);
        let serving = paced.progress.begin_request();
        near.write_all(b"body").await.unwrap();
        paced.read_exact(&mut [0; 4]).await.unwrap();
        assert_eq!(memory.charged_bytes(), 0);
        drop(serving);
        // The connection's budget is half of three kilobytes.
        near.write_all(&[b'h'; 2000]).await.unwrap();
        let error = paced.read_exact(&mut [0; 2000]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
    }
}
