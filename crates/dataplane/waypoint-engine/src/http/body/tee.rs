//! Copies request bodies to mirrors while they are forwarded. The original request never waits for a mirror: a mirror
//! that lags too far behind receives no more.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::{mpsc, oneshot};

use crate::{
    memory::{ChargePurpose, ConnectionMemory, MemoryPermit},
    message::{self, Body, BodyError},
    mirrors::BufferedBytes,
};

/// Maximum bytes that one mirror may lag behind the original body.
pub(in crate::http) const MAX_LAG_BYTES: usize = 1 << 20;
/// Maximum bytes that all mirrors of a worker together may lag behind.
const MAX_TOTAL_LAG_BYTES: usize = 32 << 20;
/// Bytes charged for a buffered frame in addition to its data.
const FRAME_OVERHEAD_BYTES: usize = 64;

/// Result of copying a body to one mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum CopyOutcome {
    /// Mirror that has received the whole body.
    Complete,
    /// Mirror that lagged too far behind the original body.
    TooSlow,
}

/// Original body, whose frames are copied to mirrors when they are read.
struct Tee {
    inner: Body,
    copies: Vec<CopySender>,
}

/// Sender of a body's copy to one mirror.
struct CopySender {
    events: mpsc::UnboundedSender<CopyEvent>,
    mirror_bytes: Arc<AtomicUsize>,
    worker_bytes: BufferedBytes,
    memory: ConnectionMemory,
    outcome_sender: Option<oneshot::Sender<CopyOutcome>>,
}

enum CopyEvent {
    Frame(Frame<Bytes>, BufferedFrame),
    End,
}

/// Buffered frame for a mirror, which counts towards the worker's limit until it is dropped.
struct BufferedFrame {
    bytes: usize,
    mirror_bytes: Arc<AtomicUsize>,
    worker_bytes: BufferedBytes,
    _permit: MemoryPermit,
}

impl Drop for BufferedFrame {
    fn drop(&mut self) {
        self.mirror_bytes.fetch_sub(self.bytes, Relaxed);
        self.worker_bytes.0.fetch_sub(self.bytes, Relaxed);
    }
}

/// Copy of a body that is sent to a mirror.
struct CopyBody {
    events: mpsc::UnboundedReceiver<CopyEvent>,
    /// Remaining bytes of the body, if its length is known.
    remaining_bytes: Option<u64>,
}

/// Error of a copy whose original was aborted, or whose mirror was too slow.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the mirrored request is given up")]
struct CopyAborted;

/// Copies a body to mirrors while it is read. Returns the body to forward, and `count` copies, each with a receiver of
/// its outcome.
pub(in crate::http) fn tee(
    inner: Body,
    count: usize,
    buffered: &BufferedBytes,
    memory: &ConnectionMemory,
) -> (Body, Vec<(Body, oneshot::Receiver<CopyOutcome>)>) {
    if inner.is_end_stream() {
        let empty = || {
            let (ended, end) = oneshot::channel();
            // The receiver exists.
            let _sent = ended.send(CopyOutcome::Complete);
            (message::text_body(""), end)
        };
        return (inner, (0..count).map(|_| empty()).collect());
    }
    let left = inner.size_hint().exact();
    let (mut copies, mut bodies) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let (sender, pieces) = mpsc::unbounded_channel();
        let (ended, end) = oneshot::channel();
        copies.push(CopySender {
            events: sender,
            mirror_bytes: Arc::default(),
            worker_bytes: buffered.clone(),
            memory: memory.clone(),
            outcome_sender: Some(ended),
        });
        bodies.push((
            CopyBody {
                events: pieces,
                remaining_bytes: left,
            }
            .boxed_unsync(),
            end,
        ));
    }
    (Tee { inner, copies }.boxed_unsync(), bodies)
}

impl CopySender {
    /// Queues a copy of a frame for the mirror; false if the mirror lags too far behind.
    fn send_frame(&mut self, frame: &Frame<Bytes>) -> bool {
        let (copy, bytes) = match (frame.data_ref(), frame.trailers_ref()) {
            (Some(data), _) => (Frame::data(data.clone()), data.len() + FRAME_OVERHEAD_BYTES),
            (_, Some(trailers)) => (Frame::trailers(trailers.clone()), FRAME_OVERHEAD_BYTES),
            (None, None) => return true,
        };
        let Ok(permit) = self.memory.charge_request(ChargePurpose::MirrorBody, bytes) else {
            self.finish(CopyOutcome::TooSlow);
            return false;
        };
        let own = self.mirror_bytes.fetch_add(bytes, Relaxed) + bytes;
        let all = self.worker_bytes.0.fetch_add(bytes, Relaxed) + bytes;
        let held = BufferedFrame {
            bytes,
            mirror_bytes: self.mirror_bytes.clone(),
            worker_bytes: self.worker_bytes.clone(),
            _permit: permit,
        };
        if own > MAX_LAG_BYTES || all > MAX_TOTAL_LAG_BYTES {
            self.finish(CopyOutcome::TooSlow);
            return false;
        }
        self.events.send(CopyEvent::Frame(copy, held)).is_ok()
    }

    fn finish(&mut self, outcome: CopyOutcome) {
        if let Some(ended) = self.outcome_sender.take() {
            // The receiver may be gone.
            let _sent = ended.send(outcome);
        }
    }

    /// Ends the copy for a mirror, since the original body is complete.
    fn complete(mut self) {
        let _taken = self.events.send(CopyEvent::End);
        self.finish(CopyOutcome::Complete);
    }
}

impl HttpBody for Tee {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.inner).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                this.copies.retain_mut(|copy| copy.send_frame(frame));
                // The last frame was polled, after which the body is not polled again.
                if this.inner.is_end_stream() {
                    this.copies.drain(..).for_each(CopySender::complete);
                }
            }
            None => this.copies.drain(..).for_each(CopySender::complete),
            Some(Err(_)) => this.copies.clear(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl HttpBody for CopyBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        Poll::Ready(match ready!(this.events.poll_recv(cx)) {
            Some(CopyEvent::Frame(frame, _held)) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
                this.remaining_bytes = this.remaining_bytes.map(|left| left.saturating_sub(bytes));
                Some(Ok(frame))
            }
            Some(CopyEvent::End) => None,
            None => Some(Err(CopyAborted.into())),
        })
    }

    fn size_hint(&self) -> SizeHint {
        self.remaining_bytes
            .map(SizeHint::with_exact)
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
