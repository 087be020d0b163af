//! Buffers request bodies for retries, up to a maximum size.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;

use crate::{
    memory::{ChargePurpose, ConnectionMemory, MemoryPermit},
    message::{Body, BodyError},
};

/// Maximum size of a replayable body. Requests with larger ones are not retried.
pub(in crate::http) const MAX_REPLAY_BYTES: usize = 64 << 10;
/// Bytes charged for a buffered frame in addition to its data.
const FRAME_OVERHEAD_BYTES: usize = 64;

/// Request body that is buffered while it streams, so that a retry can send it again. A body that is too large is not
/// buffered.
#[derive(Clone)]
pub(in crate::http) struct ReplayBody(Arc<Mutex<Inner>>);

struct Inner {
    source: Body,
    frames: Vec<BufferedFrame>,
    bytes: usize,
    /// Memory budget to which the buffered frames are charged.
    memory: ConnectionMemory,
    permit: Option<MemoryPermit>,
    has_ended: bool,
    is_discarded: bool,
    /// Number of the current attempt. Readers of earlier attempts receive no more frames.
    attempt: u64,
    /// Total size of the body in bytes, if known.
    length: Option<u64>,
}

#[derive(Clone)]
enum BufferedFrame {
    Data(Bytes),
    Trailers(HeaderMap),
}

struct ReplayReader {
    replay: ReplayBody,
    attempt: u64,
    next_frame: usize,
    /// Remaining bytes of the body, if its length is known.
    remaining_bytes: Option<u64>,
}

/// Error of an attempt's body after a retry has begun.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the request is sent again")]
struct SupersededAttempt;

impl ReplayBody {
    pub(in crate::http) fn new(source: Body, memory: &ConnectionMemory) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            length: source.size_hint().exact(),
            source,
            frames: Vec::new(),
            bytes: 0,
            memory: memory.clone(),
            permit: None,
            has_ended: false,
            is_discarded: false,
            attempt: 0,
        })))
    }

    /// Whether all frames read so far are still buffered, so that the body can be sent again.
    pub(in crate::http) fn is_replayable(&self) -> bool {
        !self.0.lock().is_discarded
    }

    /// Returns the body from its beginning for the next attempt; `None` if it was too large to buffer. The body of the
    /// previous attempt receives no more frames.
    pub(in crate::http) fn rewind(&self) -> Option<Body> {
        let mut inner = self.0.lock();
        if inner.is_discarded {
            return None;
        }
        inner.attempt += 1;
        let reading = ReplayReader {
            replay: self.clone(),
            attempt: inner.attempt,
            next_frame: 0,
            remaining_bytes: inner.length,
        };
        drop(inner);
        Some(reading.boxed_unsync())
    }
}

impl Inner {
    fn buffer_frame(&mut self, frame: &Frame<Bytes>) {
        if self.is_discarded {
            return;
        }
        let part = match (frame.data_ref(), frame.trailers_ref()) {
            (Some(data), _) => BufferedFrame::Data(data.clone()),
            (_, Some(trailers)) => BufferedFrame::Trailers(trailers.clone()),
            (None, None) => return,
        };
        let bytes = FRAME_OVERHEAD_BYTES + frame.data_ref().map_or(0, Bytes::len);
        self.bytes += bytes;
        self.is_discarded = self.bytes > MAX_REPLAY_BYTES || !self.charge(bytes);
        if self.is_discarded {
            self.frames = Vec::new();
            self.permit = None;
        } else {
            self.frames.push(part);
        }
    }

    /// Charges the memory budget for more buffered bytes. Returns false if the budget has no room.
    fn charge(&mut self, bytes: usize) -> bool {
        match &mut self.permit {
            Some(permit) => self
                .memory
                .grow(ChargePurpose::RetryBody, permit, bytes)
                .is_ok(),
            none => {
                *none = self
                    .memory
                    .charge_request(ChargePurpose::RetryBody, bytes)
                    .ok();
                none.is_some()
            }
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut self.source).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                self.buffer_frame(frame);
                self.has_ended = self.source.is_end_stream();
            }
            None => self.has_ended = true,
            Some(Err(_)) => self.is_discarded = true,
        }
        Poll::Ready(frame)
    }
}

impl HttpBody for ReplayReader {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let mut inner = this.replay.0.lock();
        if inner.attempt != this.attempt {
            return Poll::Ready(Some(Err(SupersededAttempt.into())));
        }
        let frame = match inner.frames.get(this.next_frame).cloned() {
            Some(BufferedFrame::Data(data)) => Some(Ok(Frame::data(data))),
            Some(BufferedFrame::Trailers(trailers)) => Some(Ok(Frame::trailers(trailers))),
            None => ready!(inner.poll(cx)),
        };
        if let Some(Ok(frame)) = &frame {
            this.next_frame += 1;
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            this.remaining_bytes = this.remaining_bytes.map(|left| left.saturating_sub(bytes));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        let inner = self.replay.0.lock();
        let is_whole = inner.has_ended || inner.source.is_end_stream();
        is_whole && self.next_frame >= inner.frames.len()
    }

    fn size_hint(&self) -> SizeHint {
        self.remaining_bytes
            .map(SizeHint::with_exact)
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::StreamBody;
    use tokio::sync::mpsc;

    use super::*;
    use crate::memory::Memory;

    /// Returns the memory budget of a connection, in a process with this memory limit.
    fn memory(process: usize) -> ConnectionMemory {
        let memory = Memory::new(process, Arc::default());
        memory.connection(None, [10, 0, 0, 1].into())
    }

    type Sender = mpsc::UnboundedSender<Result<Frame<Bytes>, BodyError>>;

    fn body() -> (Sender, ReplayBody) {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let frames = futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx));
        let body = StreamBody::new(frames).boxed_unsync();
        (sender, ReplayBody::new(body, &memory(8 << 20)))
    }

    fn send_data(sender: &Sender, bytes: &[u8]) {
        let bytes = Bytes::copy_from_slice(bytes);
        sender.send(Ok(Frame::data(bytes))).unwrap();
    }

    async fn read_data(body: &mut Body) -> Vec<u8> {
        let frame = body.frame().await.unwrap().unwrap();
        frame.into_data().unwrap().to_vec()
    }

    #[tokio::test]
    async fn body_is_replayed_and_then_read_to_its_end() {
        let (sender, replay) = body();
        let mut first = replay.rewind().unwrap();
        send_data(&sender, b"one");
        send_data(&sender, b"two");
        assert_eq!(read_data(&mut first).await, b"one");
        let mut second = replay.rewind().unwrap();
        // A superseded reader receives no more frames.
        assert!(
            first
                .frame()
                .await
                .unwrap()
                .unwrap_err()
                .is::<SupersededAttempt>()
        );
        assert_eq!(read_data(&mut second).await, b"one");
        assert_eq!(read_data(&mut second).await, b"two");
        let mut trailers = HeaderMap::new();
        trailers.insert("x-end", http::HeaderValue::from_static("1"));
        sender.send(Ok(Frame::trailers(trailers.clone()))).unwrap();
        drop(sender);
        assert!(second.frame().await.unwrap().unwrap().is_trailers());
        assert!(second.frame().await.is_none());
        let third = replay.rewind().unwrap();
        let third = third.collect().await.unwrap();
        assert_eq!(third.trailers(), Some(&trailers));
        assert_eq!(third.to_bytes(), "onetwo");
    }

    #[tokio::test]
    async fn large_or_failed_bodies_are_forwarded_without_replay() {
        let (sender, replay) = body();
        let mut first = replay.rewind().unwrap();
        let piece = vec![0; MAX_REPLAY_BYTES / 4];
        for count in 1..=6 {
            send_data(&sender, &piece);
            assert_eq!(read_data(&mut first).await, piece);
            assert!(replay.0.lock().bytes <= MAX_REPLAY_BYTES + piece.len() + FRAME_OVERHEAD_BYTES);
            if count >= 4 {
                assert!(replay.rewind().is_none());
                assert!(replay.0.lock().frames.is_empty());
            }
        }
        drop(sender);
        assert!(first.frame().await.is_none());
        let (sender, replay) = body();
        let mut first = replay.rewind().unwrap();
        sender.send(Err("broken".into())).unwrap();
        assert!(first.frame().await.unwrap().is_err());
        assert!(replay.rewind().is_none());
    }

    #[tokio::test]
    async fn bodies_over_the_memory_budget_are_forwarded_without_replay() {
        // The requests of a connection have a budget of one kilobyte.
        let memory = memory(3 << 10);
        let replay = ReplayBody::new(crate::message::text_body(vec![0; 2 << 10]), &memory);
        let mut body = replay.rewind().unwrap();
        assert_eq!(read_data(&mut body).await.len(), 2 << 10);
        assert!(replay.rewind().is_none());
        let replay = ReplayBody::new(crate::message::text_body(vec![0; 900]), &memory);
        let mut body = replay.rewind().unwrap();
        assert_eq!(read_data(&mut body).await.len(), 900);
        assert!(
            memory
                .charge_request(ChargePurpose::RetryBody, 100)
                .is_err()
        );
        assert!(replay.rewind().is_some());
        drop((body, replay));
        assert!(
            memory
                .charge_request(ChargePurpose::RetryBody, 1000)
                .is_ok()
        );
    }

    #[tokio::test]
    async fn empty_body_is_replayed_as_empty() {
        let replay = ReplayBody::new(crate::message::text_body(""), &memory(8 << 20));
        for _ in 0..2 {
            let body = replay.rewind().unwrap();
            assert!(body.is_end_stream() && body.size_hint().exact() == Some(0));
        }
        let replay = ReplayBody::new(crate::message::text_body("abc"), &memory(8 << 20));
        for _ in 0..2 {
            let mut body = replay.rewind().unwrap();
            assert!(!body.is_end_stream() && body.size_hint().exact() == Some(3));
            assert_eq!(read_data(&mut body).await, b"abc");
            assert!(body.is_end_stream());
        }
    }
}
