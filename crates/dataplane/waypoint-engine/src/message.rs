//! HTTP versions, bodies and executors that connections to clients and to upstreams have in common.

use bytes::Bytes;
use http::{Request, Uri, uri::Scheme};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::rt::Executor;

use crate::fair_share::TaskShare;

/// HTTP version of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Version {
    /// HTTP/1.0 or HTTP/1.1.
    Http1,
    /// HTTP/2, in cleartext (h2c) or over TLS that the waypoint originates.
    Http2,
}

/// Body of a request or response.
pub(crate) type Body = UnsyncBoxBody<Bytes, BodyError>;

/// Error that ends a body early.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// Returns a body with a fixed text.
pub(crate) fn text_body(text: impl Into<Bytes>) -> Body {
    let full = Full::new(text.into());
    full.map_err(|never| match never {}).boxed_unsync()
}

/// Sets `:scheme` of an HTTP/2 request to `https`.
pub(crate) fn set_https_scheme(request: &mut Request<Body>) {
    let mut parts = request.uri().clone().into_parts();
    if parts.authority.is_some() {
        parts.scheme = Some(Scheme::HTTPS);
    }
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
}

/// Executor for the tasks of an HTTP/2 connection, which charges their polls to a CPU share.
#[derive(Clone, Debug)]
pub(crate) struct TaskExecutor(pub(crate) TaskShare);

impl<F> Executor<F> for TaskExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, task: F) {
        ambit_rt::spawn("http2 stream", self.0.run(task));
    }
}
