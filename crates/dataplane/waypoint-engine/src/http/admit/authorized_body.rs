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
    headers::is_allowed_trailer,
    http::body::count::BodyCounter,
    message::{Body, BodyError},
};

/// Error of a body that is incomplete when the route's request timeout expires.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the time that the route allows is over")]
struct DeadlineExceeded;

/// Direction of trailers, which decides the fields that are allowed.
#[derive(Clone, Copy, Debug)]
pub(in crate::http) enum TrailersDirection {
    Request,
    Response,
}

impl TrailersDirection {
    /// Removes forbidden fields from a trailers frame: applications that read trailers as headers would trust fields
    /// that no policy has evaluated.
    fn filter_frame(self, frame: Frame<Bytes>, admission: &Admission) -> Frame<Bytes> {
        let may_pass = |name: &HeaderName| match self {
            Self::Request => is_allowed_trailer(name) && !admission.reads_header(name),
            Self::Response => is_allowed_trailer(name),
        };
        frame
            .into_trailers()
            .map_or_else(|frame| frame, |all| allowed_trailers(all, may_pass))
    }
}

/// Returns a frame with the allowed trailers; an empty data frame if no trailer is allowed.
pub(in crate::http) fn allowed_trailers(
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
    pub(crate) struct AuthorizedBody<B, K> {
        #[pin]
        inner: B,
        count: BodyCounter,
        admission: Admission,
        trailers: TrailersDirection,
        deadline: Option<Pin<Box<Sleep>>>,
        // Dropped with the body.
        _keep: K,
    }
}

impl<B, K> AuthorizedBody<B, K>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BodyError>,
    K: Send + 'static,
{
    /// Wraps a body that streams while policies allow the request, until the deadline. `keep` is dropped together with
    /// the body.
    pub(in crate::http) fn wrap(
        inner: B,
        count: BodyCounter,
        admission: Admission,
        trailers: TrailersDirection,
        deadline: Option<Instant>,
        keep: K,
    ) -> Body {
        if inner.is_end_stream() {
            count.mark_complete();
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

impl<B, K> HttpBody for AuthorizedBody<B, K>
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
            this.count.mark_timed_out();
            return Poll::Ready(Some(Err(DeadlineExceeded.into())));
        }
        let frame = ready!(this.inner.as_mut().poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                this.count.count_frame(frame);
                // The last frame was polled, after which the body is not polled again.
                if this.inner.is_end_stream() {
                    this.count.mark_complete();
                }
            }
            None => this.count.mark_complete(),
            Some(Err(_)) => this.count.mark_aborted(),
        }
        if let Err(no_longer) = this.admission.check() {
            return Poll::Ready(Some(Err(no_longer.into())));
        }
        let pass = |frame| this.trailers.filter_frame(frame, this.admission);
        Poll::Ready(frame.map(|frame| frame.map(pass).map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
