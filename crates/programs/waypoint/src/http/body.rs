//! Bodies as they pass through: counted, and with something that ends with them.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};

/// A body of either direction.
pub(crate) type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// A text of our own.
pub(crate) fn text(text: impl Into<Bytes>) -> Body {
    let full = Full::new(text.into());
    full.map_err(|never| match never {}).boxed_unsync()
}

/// Bytes of one direction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Count(Arc<AtomicU64>);

impl Count {
    /// Bytes so far.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

pin_project_lite::pin_project! {
    /// A body that is passed on.
    pub(crate) struct Passing<K> {
        #[pin]
        inner: Incoming,
        count: Count,
        // Dropped with the body.
        _keep: K,
    }
}

impl<K: Send + 'static> Passing<K> {
    /// `keep` is dropped when the body has been read, or is given up.
    pub(crate) fn body(inner: Incoming, count: Count, keep: K) -> Body {
        let passing = Self {
            inner,
            count,
            _keep: keep,
        };
        passing.boxed_unsync()
    }
}

impl<K> HttpBody for Passing<K> {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.project();
        let frame = ready!(this.inner.poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            let bytes = u64::try_from(data.remaining()).unwrap_or(u64::MAX);
            this.count.0.fetch_add(bytes, Relaxed);
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
