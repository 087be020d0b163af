//! Idle timeouts of bodies: an upload that its client does not continue, or a response that its application silently
//! stops sending. Each holds a connection, and a worker of the application or the client.
//!
//! Exactly two waits are limited: for an upload until its response begins, and for the rest of a response with a
//! declared length. All others may be idle for any time: a request that waits for its response, a response without a
//! declared length (server-sent events, watches, long polls), a bidirectional stream once its response has begun, gRPC,
//! Connect, and upgraded connections.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use ambit_telemetry::http::ResponseFlag;
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header::CONTENT_TYPE};
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use crate::{
    http::reply::Reply,
    message::{Body, BodyError},
};

/// Error of a body that was idle for longer than the timeout.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("nothing of the body came for {0:?} (AMBIT_STREAM_IDLE_TIMEOUT)")]
pub(in crate::http) struct IdleError(Duration);

/// Idle timeouts of the request and response bodies of one request.
#[derive(Clone, Debug)]
pub(in crate::http) struct IdleTimeout {
    /// Idle timeout; `None` disables it.
    limit: Option<Duration>,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether the response has begun: from then on the request body has no idle timeout.
    has_response_begun: AtomicBool,
    /// Whether the request body has timed out.
    has_upload_timed_out: AtomicBool,
}

/// Direction of a body, which decides when its idle timeout applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Request,
    Response,
}

/// Body whose reader waits for frames only until the idle timeout.
struct IdleTimeoutBody {
    body: Body,
    limit: Duration,
    direction: Direction,
    state: Arc<State>,
    /// Timer that started when the reader began to wait for the next frame.
    idle_timer: Option<Pin<Box<Sleep>>>,
}

impl IdleTimeout {
    /// Creates the idle timeouts of a request with these headers; a zero limit disables them.
    pub(in crate::http) fn new(limit: Duration, headers: &HeaderMap, is_upgrade: bool) -> Self {
        let is_bounded = !limit.is_zero() && !is_upgrade && !is_message_stream(headers);
        Self {
            limit: is_bounded.then_some(limit),
            state: Arc::default(),
        }
    }

    /// Applies the idle timeout to reading the request body before it is wrapped, such as for an authorization
    /// provider.
    ///
    /// # Errors
    /// When the future exceeds the timeout.
    pub(in crate::http) async fn apply<T>(
        &self,
        waiting: impl Future<Output = T>,
    ) -> Result<T, IdleError> {
        match self.limit {
            None => Ok(waiting.await),
            Some(limit) => {
                let waited = tokio::time::timeout(limit, waiting).await;
                waited.map_err(|_| IdleError(limit))
            }
        }
    }

    /// Wraps a request's body, which fails when it is idle before the response has begun.
    pub(in crate::http) fn wrap_request(&self, body: Body) -> Body {
        self.wrap_body(body, Direction::Request)
    }

    /// Wraps a response body of declared length, which fails when it is idle for too long; returns other bodies
    /// unchanged.
    pub(in crate::http) fn wrap_response(&self, body: Body) -> Body {
        self.state.has_response_begun.store(true, Relaxed);
        match body.size_hint().exact() {
            Some(_) => self.wrap_body(body, Direction::Response),
            None => body,
        }
    }

    /// Returns the reply (408) to a request whose body has timed out.
    pub(in crate::http) fn timeout_reply(&self) -> Option<Reply> {
        let limit = self
            .limit
            .filter(|_| self.state.has_upload_timed_out.load(Relaxed))?;
        Some(IdleError(limit).into())
    }

    fn wrap_body(&self, body: Body, direction: Direction) -> Body {
        let Some(limit) = self.limit.filter(|_| !body.is_end_stream()) else {
            return body;
        };
        let awaited = IdleTimeoutBody {
            body,
            limit,
            direction,
            state: self.state.clone(),
            idle_timer: None,
        };
        awaited.boxed_unsync()
    }
}

/// Whether a request begins a stream of messages in either direction (gRPC, Connect), which may be idle.
fn is_message_stream(headers: &HeaderMap) -> bool {
    let of = headers.get(CONTENT_TYPE).map(http::HeaderValue::as_bytes);
    of.is_some_and(|of| {
        of.starts_with(b"application/grpc") || of.starts_with(b"application/connect+")
    })
}

impl From<IdleError> for Reply {
    fn from(_: IdleError) -> Self {
        let flag = ResponseFlag::StreamIdleTimeout;
        Self::new(StatusCode::REQUEST_TIMEOUT, "stream timeout", flag)
    }
}

impl HttpBody for IdleTimeoutBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            this.idle_timer = None;
            return Poll::Ready(frame);
        }
        if this.direction == Direction::Request && this.state.has_response_begun.load(Relaxed) {
            return Poll::Pending;
        }
        let limit = this.limit;
        let new = || Box::pin(tokio::time::sleep_until(Instant::now() + limit));
        ready!(this.idle_timer.get_or_insert_with(new).as_mut().poll(cx));
        if this.direction == Direction::Request {
            if this.state.has_response_begun.load(Relaxed) {
                return Poll::Pending;
            }
            this.state.has_upload_timed_out.store(true, Relaxed);
        }
        Poll::Ready(Some(Err(IdleError(limit).into())))
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
    use http_body_util::StreamBody;
    use tokio::sync::mpsc;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(300);

    type Frames = mpsc::UnboundedSender<Result<Frame<Bytes>, BodyError>>;

    fn body() -> (Frames, Body) {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let frames = futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx));
        (sender, StreamBody::new(frames).boxed_unsync())
    }

    fn send(frames: &Frames) {
        let frame = Frame::data(Bytes::from_static(b"a"));
        frames.send(Ok(frame)).unwrap();
    }

    fn idle_timeout_for(content_type: &'static str) -> IdleTimeout {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, http::HeaderValue::from_static(content_type));
        IdleTimeout::new(LIMIT, &headers, false)
    }

    /// Whether the next frame of a body takes longer than a day.
    async fn is_pending_for_day(body: &mut Body) -> bool {
        let most = Duration::from_secs(86_400);
        tokio::time::timeout(most, body.frame()).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn stopped_upload_times_out_and_slow_upload_does_not() {
        let idle = idle_timeout_for("text/plain");
        let (source, inner) = body();
        let mut upload = idle.wrap_request(inner);
        for _ in 0..20 {
            let (frame, ()) = tokio::join!(upload.frame(), async {
                tokio::time::sleep(LIMIT - Duration::from_secs(1)).await;
                send(&source);
            });
            frame.unwrap().unwrap();
        }
        assert!(idle.timeout_reply().is_none());
        let began = Instant::now();
        upload.frame().await.unwrap().unwrap_err();
        assert_eq!(began.elapsed().as_secs(), LIMIT.as_secs());
        let reply = idle.timeout_reply().unwrap();
        assert_eq!(reply.status, StatusCode::REQUEST_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn timeout_starts_when_the_reader_polls() {
        let idle = idle_timeout_for("text/plain");
        let (source, inner) = body();
        let mut upload = idle.wrap_request(inner);
        send(&source);
        upload.frame().await.unwrap().unwrap();
        tokio::time::sleep(LIMIT * 3).await;
        let (frame, ()) = tokio::join!(upload.frame(), async {
            tokio::time::sleep(LIMIT / 2).await;
            send(&source);
        });
        frame.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn bidirectional_streams_may_be_idle_after_the_response_began() {
        let idle = idle_timeout_for("text/plain");
        let ((_source, request), (_other, response)) = (body(), body());
        let mut upload = idle.wrap_request(request);
        let mut download = idle.wrap_response(response);
        assert!(is_pending_for_day(&mut upload).await && is_pending_for_day(&mut download).await);
        // Also a response that begins during the upload.
        let idle = idle_timeout_for("text/plain");
        let ((_source, request), (_other, response)) = (body(), body());
        let mut upload = idle.wrap_request(request);
        let (is_waiting, _download) = tokio::join!(is_pending_for_day(&mut upload), async {
            tokio::time::sleep(LIMIT / 2).await;
            idle.wrap_response(response)
        });
        assert!(is_waiting && idle.timeout_reply().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn stopped_response_of_declared_length_times_out() {
        let (_source, inner) = body();
        let declared = DeclaredLengthBody(inner).boxed_unsync();
        let mut download = idle_timeout_for("text/plain").wrap_response(declared);
        download.frame().await.unwrap().unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn grpc_connect_and_upgrades_have_no_idle_timeout() {
        let upgrade = IdleTimeout::new(LIMIT, &HeaderMap::new(), true);
        let unlimited = IdleTimeout::new(Duration::ZERO, &HeaderMap::new(), false);
        let streams = [
            "application/grpc",
            "application/grpc-web+proto",
            "application/connect+json",
        ];
        for idle in streams
            .map(idle_timeout_for)
            .into_iter()
            .chain([upgrade, unlimited])
        {
            let (_source, inner) = body();
            assert!(
                is_pending_for_day(&mut idle.wrap_request(inner)).await,
                "{idle:?}"
            );
            assert!(idle.apply(tokio::time::sleep(LIMIT * 9)).await.is_ok());
        }
        let bounded = idle_timeout_for("application/json");
        assert!(bounded.apply(tokio::time::sleep(LIMIT * 9)).await.is_err());
    }

    /// Body that declares a length to its reader.
    struct DeclaredLengthBody(Body);

    impl HttpBody for DeclaredLengthBody {
        type Data = Bytes;
        type Error = BodyError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
            Pin::new(&mut self.0).poll_frame(cx)
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(7)
        }
    }
}
