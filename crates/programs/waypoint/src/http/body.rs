//! Bodies as they pass through: counted, and with something that ends with them.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName};
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep};

use super::admission::Admission;
use crate::{
    headers::may_be_trailer,
    message::{Body, BodyError},
};

/// Counter of bytes and messages in one direction.
#[derive(Clone, Debug)]
pub(crate) struct Count(Arc<Mutex<Counted>>);

#[derive(Debug, Default)]
struct Counted {
    bytes: u64,
    /// Message counter of gRPC bodies.
    messages: Option<Messages>,
    grpc_status: Option<u32>,
    is_complete: bool,
    is_broken: bool,
    is_late: bool,
}

/// Counts the messages of a gRPC stream: each has five bytes before it, of which four are its length.
#[derive(Debug, Default)]
struct Messages {
    count: u64,
    prefix: Vec<u8>,
    /// Remaining bytes of the current message.
    left: usize,
}

impl Count {
    /// Creates a counter at zero.
    pub(crate) fn of(is_grpc: bool) -> Self {
        Self(Arc::new(Mutex::new(Counted {
            messages: is_grpc.then(Messages::default),
            ..Counted::default()
        })))
    }

    /// Bytes so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.lock().bytes
    }

    /// Messages of gRPC so far.
    pub(crate) fn messages(&self) -> u64 {
        self.0.lock().messages.as_ref().map_or(0, |one| one.count)
    }

    /// Returns the final gRPC status of a response.
    pub(crate) fn grpc_status(&self) -> Option<u32> {
        self.0.lock().grpc_status
    }

    /// Whether the body was forwarded completely.
    pub(crate) fn is_complete(&self) -> bool {
        self.0.lock().is_complete
    }

    /// Whether its sender broke it off, or did not keep to the protocol.
    pub(crate) fn is_broken(&self) -> bool {
        self.0.lock().is_broken
    }

    /// Whether its time was over before its end.
    pub(crate) fn is_late(&self) -> bool {
        self.0.lock().is_late
    }

    /// Bytes that are no part of a body that passes through.
    pub(crate) fn add(&self, bytes: usize) {
        self.0.lock().bytes += u64::try_from(bytes).unwrap_or(u64::MAX);
    }

    /// The status in headers or trailers.
    pub(crate) fn grpc_status_of(&self, headers: &HeaderMap) {
        let status = headers.get("grpc-status");
        let status = status.and_then(|status| status.to_str().ok()?.parse().ok());
        let mut counted = self.0.lock();
        counted.grpc_status = status.or(counted.grpc_status);
    }

    fn frame(&self, frame: &Frame<Bytes>) {
        if let Some(data) = frame.data_ref() {
            let mut counted = self.0.lock();
            counted.bytes += u64::try_from(data.len()).unwrap_or(u64::MAX);
            if let Some(messages) = &mut counted.messages {
                messages.take(data);
            }
        } else if let Some(trailers) = frame.trailers_ref() {
            self.grpc_status_of(trailers);
        }
    }

    /// Marks the body as complete.
    pub(crate) fn completed(&self) {
        self.0.lock().is_complete = true;
    }
}

impl Messages {
    fn take(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            if self.left > 0 {
                let skipped = self.left.min(data.len());
                self.left -= skipped;
                data = data.get(skipped..).unwrap_or_default();
                continue;
            }
            let missing = 5 - self.prefix.len();
            let taken = data.get(..missing).unwrap_or(data);
            self.prefix.extend_from_slice(taken);
            data = data.get(taken.len()..).unwrap_or_default();
            if let [_, a, b, c, d] = *self.prefix.as_slice() {
                let length = u32::from_be_bytes([a, b, c, d]);
                self.left = usize::try_from(length).unwrap_or(usize::MAX);
                self.count += 1;
                self.prefix.clear();
            }
        }
    }
}

/// A route's timeout is over before the end of a body.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the time that the route allows is over")]
struct TooLate;

/// Which message trailers end.
#[derive(Clone, Copy, Debug)]
pub(super) enum Trailers {
    OfRequest,
    OfResponse,
}

impl Trailers {
    /// Removes fields that may not be trailers: applications that read trailers as headers would trust fields that no
    /// policy has seen.
    fn pass(self, frame: Frame<Bytes>, admission: &Admission) -> Frame<Bytes> {
        let may_pass = |name: &HeaderName| match self {
            Self::OfRequest => may_be_trailer(name) && !admission.reads_header(name),
            Self::OfResponse => may_be_trailer(name),
        };
        frame
            .into_trailers()
            .map_or_else(|frame| frame, |all| only(all, may_pass))
    }
}

/// A frame of the trailers that may pass; without any, of no data.
pub(super) fn only(all: HeaderMap, may_pass: impl Fn(&HeaderName) -> bool) -> Frame<Bytes> {
    let mut left = all;
    let refused = left.keys().filter(|name| !may_pass(name)).cloned();
    for name in refused.collect::<Vec<_>>() {
        left.remove(name);
    }
    match left.is_empty() {
        true => Frame::data(Bytes::new()),
        false => Frame::trailers(left),
    }
}

pin_project_lite::pin_project! {
    /// Body that is being forwarded.
    pub(crate) struct Passing<B, K> {
        #[pin]
        inner: B,
        count: Count,
        admission: Admission,
        trailers: Trailers,
        deadline: Option<Pin<Box<Sleep>>>,
        // Dropped with the body.
        _keep: K,
    }
}

impl<B, K> Passing<B, K>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BodyError>,
    K: Send + 'static,
{
    /// Streams a body while policies admit the request and until the deadline. `keep` is dropped when it has been read,
    /// or is given up.
    pub(super) fn body(
        inner: B,
        count: Count,
        (admission, trailers): (Admission, Trailers),
        deadline: Option<Instant>,
        keep: K,
    ) -> Body {
        if inner.is_end_stream() {
            count.completed();
        }
        let passing = Self {
            inner,
            count,
            admission,
            trailers,
            deadline: deadline.map(|at| Box::pin(tokio::time::sleep_until(at))),
            _keep: keep,
        };
        passing.boxed_unsync()
    }
}

impl<B, K> HttpBody for Passing<B, K>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BodyError>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut this = self.project();
        if let Some(deadline) = this.deadline
            && deadline.as_mut().poll(cx).is_ready()
        {
            this.count.0.lock().is_late = true;
            return Poll::Ready(Some(Err(TooLate.into())));
        }
        let frame = ready!(this.inner.as_mut().poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                this.count.frame(frame);
                // No frame is polled after the last one.
                if this.inner.is_end_stream() {
                    this.count.completed();
                }
            }
            None => this.count.completed(),
            Some(Err(_)) => this.count.0.lock().is_broken = true,
        }
        if let Err(no_longer) = this.admission.check() {
            return Poll::Ready(Some(Err(no_longer.into())));
        }
        let pass = |frame| this.trailers.pass(frame, this.admission);
        Poll::Ready(frame.map(|frame| frame.map(pass).map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_counted_however_they_are_cut() {
        let stream = [
            &[0, 0, 0, 0, 2, 1, 1][..],
            &[0, 0, 0, 0, 0],
            &[1, 0, 0, 1, 0],
            &[7; 256],
        ];
        let stream = stream.concat();
        for step in [1, 2, 3, 7, 1000] {
            let mut messages = Messages::default();
            for piece in stream.chunks(step) {
                messages.take(piece);
            }
            assert_eq!(messages.count, 3, "in pieces of {step}");
            assert_eq!(messages.left, 0);
        }
    }
}
