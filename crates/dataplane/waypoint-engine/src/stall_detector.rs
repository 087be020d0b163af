//! Detects stalled bodies: those whose reader takes nothing for a long time although more data is available, because a
//! client does not read its response or an application does not read its request. A stalled body is dropped, which
//! cancels the request on its other side and releases its resources.
//!
//! A stream that is idle because there is nothing to send never stalls: gRPC streams, long polls and upgraded
//! connections may be idle for any time.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use crate::message::{Body, BodyError};

/// Watched request and response bodies of one worker.
#[derive(Debug)]
pub(crate) struct StallDetector {
    /// Stall timeout (`AMBIT_STREAM_STALL_TIMEOUT`); `None` disables it.
    limit: Option<Duration>,
    tracked_bodies: Arc<Mutex<TrackedBodies>>,
}

#[derive(Debug, Default)]
struct TrackedBodies {
    bodies: HashMap<u64, Arc<TrackedBody>>,
    next_id: u64,
    is_sweeping: bool,
}

#[derive(Debug)]
struct TrackedBody {
    state: Mutex<State>,
    stalled: Arc<Notify>,
}

#[derive(Debug)]
struct State {
    /// Forwarded body; `None` once it was dropped after a stall.
    body: Option<Body>,
    /// Time since which the reader has not polled for the next frame.
    unread_since: Option<Instant>,
}

/// Error of a body whose reader did not read for the stall timeout.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("nothing of the body was read for {0:?} (AMBIT_STREAM_STALL_TIMEOUT)")]
struct StallError(Duration);

/// Body that is registered with the stall detector from its first frame to its end.
struct WatchedBody {
    tracked_body: Arc<TrackedBody>,
    tracked_bodies: Arc<Mutex<TrackedBodies>>,
    limit: Duration,
    id: Option<u64>,
}

impl StallDetector {
    /// Creates a stall detector with this timeout; zero disables it.
    pub(crate) fn new(limit: Duration) -> Self {
        Self {
            limit: (!limit.is_zero()).then_some(limit),
            tracked_bodies: Arc::default(),
        }
    }

    /// Wraps a body, which ends with an error when its reader has taken nothing for too long. `stalled` is then
    /// notified, since a reader that does not read does not see the error.
    pub(crate) fn watch(&self, body: Body, stalled: &Arc<Notify>) -> Body {
        let Some(limit) = self.limit.filter(|_| !body.is_end_stream()) else {
            return body;
        };
        let flow = Arc::new(TrackedBody {
            state: Mutex::new(State {
                body: Some(body),
                unread_since: None,
            }),
            stalled: stalled.clone(),
        });
        let watched = WatchedBody {
            tracked_body: flow,
            tracked_bodies: self.tracked_bodies.clone(),
            limit,
            id: None,
        };
        watched.boxed_unsync()
    }
}

impl WatchedBody {
    /// Registers the body with the stall detector, and starts the task that checks for stalls if it is not running.
    fn register(&mut self) {
        let mut flows = self.tracked_bodies.lock();
        let id = flows.next_id;
        flows.next_id += 1;
        flows.bodies.insert(id, self.tracked_body.clone());
        self.id = Some(id);
        if !flows.is_sweeping {
            flows.is_sweeping = true;
            let (flows, limit) = (self.tracked_bodies.clone(), self.limit);
            ambit_rt::spawn("stalled bodies", sweep(flows, limit));
        }
    }
}

/// Drops stalled bodies periodically, until no body is registered.
async fn sweep(flows: Arc<Mutex<TrackedBodies>>, limit: Duration) {
    let interval = (limit / 8).clamp(Duration::from_millis(100), Duration::from_secs(5));
    loop {
        tokio::time::sleep(interval).await;
        let mut stalled = Vec::new();
        {
            let mut flows = flows.lock();
            for flow in flows.bodies.values() {
                stalled.extend(flow.take_if_stalled(limit));
            }
            if flows.bodies.is_empty() {
                flows.is_sweeping = false;
                return;
            }
        }
        // Bodies that end now may themselves lock the flows.
        drop(stalled);
    }
}

impl TrackedBody {
    fn take_if_stalled(&self, limit: Duration) -> Option<Body> {
        let mut state = self.state.lock();
        let since = state.unread_since?;
        if since.elapsed() < limit {
            return None;
        }
        state.unread_since = None;
        self.stalled.notify_one();
        state.body.take()
    }
}

impl Drop for WatchedBody {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let flow = self.tracked_bodies.lock().bodies.remove(&id);
            drop(flow);
        }
    }
}

impl HttpBody for WatchedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let mut state = this.tracked_body.state.lock();
        let Some(body) = &mut state.body else {
            return Poll::Ready(Some(Err(StallError(this.limit).into())));
        };
        let frame = Pin::new(&mut *body).poll_frame(cx);
        let has_more = matches!(frame, Poll::Ready(Some(Ok(_)))) && !body.is_end_stream();
        state.unread_since = has_more.then(Instant::now);
        drop(state);
        if has_more && this.id.is_none() {
            this.register();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        let state = self.tracked_body.state.lock();
        state.body.as_ref().is_some_and(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let state = self.tracked_body.state.lock();
        let hint = state.body.as_ref().map(HttpBody::size_hint);
        hint.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::StreamBody;
    use tokio::sync::mpsc;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    type Frames = mpsc::UnboundedSender<Result<Frame<Bytes>, BodyError>>;

    fn body() -> (Frames, Body) {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let frames = futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx));
        (sender, StreamBody::new(frames).boxed_unsync())
    }

    fn send_frame(frames: &Frames) -> bool {
        frames
            .send(Ok(Frame::data(Bytes::from_static(b"a"))))
            .is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn unread_bodies_stall_and_idle_bodies_do_not() {
        let stalls = StallDetector::new(LIMIT);
        let stalled = Arc::new(Notify::new());
        let (source, inner) = body();
        let mut unread = stalls.watch(inner, &stalled);
        assert!(send_frame(&source) && send_frame(&source));
        unread.frame().await.unwrap().unwrap();
        let (quiet_source, inner) = body();
        let mut quiet = stalls.watch(inner, &Arc::default());
        assert!(send_frame(&quiet_source));
        quiet.frame().await.unwrap().unwrap();
        let waiting = ambit_rt::spawn(
            "quiet",
            async move { (quiet.frame().await.is_some(), quiet) },
        );
        let began = Instant::now();
        stalled.notified().await;
        assert!((LIMIT..LIMIT * 2).contains(&began.elapsed()));
        assert!(!send_frame(&source), "the source is held");
        unread.frame().await.unwrap().unwrap_err();
        tokio::time::sleep(LIMIT * 100).await;
        assert!(send_frame(&quiet_source));
        assert!(waiting.await.unwrap().0);
    }

    #[tokio::test(start_paused = true)]
    async fn slowly_read_bodies_do_not_stall() {
        let stalls = StallDetector::new(LIMIT);
        let stalled = Arc::new(Notify::new());
        let (source, inner) = body();
        let mut slow = stalls.watch(inner, &stalled);
        for _ in 0..20 {
            assert!(send_frame(&source));
            slow.frame().await.unwrap().unwrap();
            tokio::time::sleep(LIMIT - Duration::from_secs(1)).await;
        }
        drop(slow);
        assert!(stalls.tracked_bodies.lock().bodies.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn zero_disables_the_timeout() {
        let stalls = StallDetector::new(Duration::ZERO);
        let (source, inner) = body();
        let mut unread = stalls.watch(inner, &Arc::default());
        assert!(send_frame(&source));
        unread.frame().await.unwrap().unwrap();
        tokio::time::sleep(LIMIT * 1000).await;
        assert!(send_frame(&source));
        unread.frame().await.unwrap().unwrap();
    }
}
