//! Streams the bodies of admitted requests and of their responses: counts them, and terminates them when policies
//! revoke the request or a deadline expires.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName};
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use super::admission::Admission;
use crate::{
    headers::may_be_trailer,
    http::body::count::Count,
    message::{Body, BodyError},
};

/// Error of a body that is incomplete when the route's request timeout expires.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the time that the route allows is over")]
struct TooLate;

/// Direction of trailers, which decides the fields that are allowed.
#[derive(Clone, Copy, Debug)]
pub(in crate::http) enum Trailers {
    OfRequest,
    OfResponse,
}

impl Trailers {
    /// Removes forbidden fields from a trailers frame: applications that read trailers as headers would trust fields
    /// that no policy has evaluated.
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

/// Returns a frame with the allowed trailers; an empty data frame if none is left.
pub(in crate::http) fn only(
    all: HeaderMap,
    may_pass: impl Fn(&HeaderName) -> bool,
) -> Frame<Bytes> {
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
    /// Body that streams while policies allow its request.
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
    /// Streams a body while policies allow the request, until the deadline. `keep` is dropped together with the body.
    pub(in crate::http) fn body(
        inner: B,
        count: Count,
        admission: Admission,
        trailers: Trailers,
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
            this.count.timed_out();
            return Poll::Ready(Some(Err(TooLate.into())));
        }
        let frame = ready!(this.inner.as_mut().poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                this.count.frame(frame);
                // The last frame was polled, after which the body is not polled again.
                if this.inner.is_end_stream() {
                    this.count.completed();
                }
            }
            None => this.count.completed(),
            Some(Err(_)) => this.count.aborted(),
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
