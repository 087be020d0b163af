//! Errors of reading streams.

use std::time::Duration;

/// Maximum length of a line of a stream, in bytes.
pub(crate) const MAX_LINE_BYTES: usize = 64 << 10;

/// Read timeout: a proxy writes an empty line every ten seconds.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Any error of a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a stream cannot be opened or has ended.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The request is malformed.
    #[error("the request cannot be made: {0}")]
    Request(#[from] hyper::http::Error),
    /// The connection or the protocol broke.
    #[error("the connection broke: {0}")]
    Http(#[from] hyper::Error),
    /// The body broke.
    #[error("the connection broke: {0}")]
    Body(#[source] BoxError),
    /// Silence for too long.
    #[error("nothing came for {READ_TIMEOUT:?}")]
    Silent,
    /// Response of another status than 200, and its text.
    #[error("status {0}: {1}")]
    Refused(u16, String),
    /// The line exceeds the maximum length.
    #[error("a line is longer than {MAX_LINE_BYTES} bytes")]
    TooLong,
}
