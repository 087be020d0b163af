//! Errors of reading streams of flow events.

use std::time::Duration;

/// Maximum length of a line of a stream, in bytes.
pub(crate) const MAX_LINE_BYTES: usize = 64 << 10;

/// Read timeout: a proxy writes an empty line every ten seconds.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Error of any kind while reading a response body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Reason why a stream of flow events cannot be opened or has ended.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The request for the stream is malformed.
    #[error("the request cannot be made: {0}")]
    Request(#[from] hyper::http::Error),
    /// The connection failed, or the peer violated HTTP.
    #[error("the connection broke: {0}")]
    Http(#[from] hyper::Error),
    /// Reading the response body failed.
    #[error("the connection broke: {0}")]
    Body(#[source] BoxError),
    /// The proxy sent nothing for `READ_TIMEOUT`.
    #[error("nothing came for {READ_TIMEOUT:?}")]
    Timeout,
    /// The response has another status than 200; its text explains why.
    #[error("status {0}: {1}")]
    Refused(u16, String),
    /// A line of the stream exceeds `MAX_LINE_BYTES`.
    #[error("a line is longer than {MAX_LINE_BYTES} bytes")]
    TooLong,
}
