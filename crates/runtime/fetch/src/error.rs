//! Errors of fetching resources by URL.

use std::{error::Error, io};

use ambit_egress::ConnectError;
use http::StatusCode;

/// Maximum redirects that one fetch follows.
pub(crate) const MAX_REDIRECTS: usize = 5;

/// Error of fetching a resource. URLs in the error have no query: the query of a redirect's target may contain a
/// signature that grants access.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The text is not a URL of the scheme http or https with a host.
    #[error("{0:?} is not a URL of http or https")]
    InvalidUrl(String),
    /// The host has no address that the guard permits and that accepts the connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The object's [`Admission`](crate::Admission) refuses the host's addresses.
    #[error(transparent)]
    Refused(Box<dyn Error + Send + Sync>),
    /// The TLS handshake failed.
    #[error("no TLS with {host}")]
    Tls {
        /// Host of the URL.
        host: String,
        /// Cause of the error.
        #[source]
        error: io::Error,
    },
    /// The server violated HTTP, or closed the connection.
    #[error("the response of {host} is not valid HTTP")]
    Http {
        /// Host of the URL.
        host: String,
        /// Cause of the error.
        #[source]
        error: hyper::Error,
    },
    /// The response has another status than 200.
    #[error("{url} responds with {status}")]
    Status {
        /// URL of the response, after redirects.
        url: String,
        /// Status of the response.
        status: StatusCode,
    },
    /// The response body exceeds the limit.
    #[error("the response of {url} is longer than {limit} bytes")]
    TooLarge {
        /// URL of the response, after redirects.
        url: String,
        /// Maximum size of the response body, in bytes.
        limit: usize,
    },
    /// The response body ended early.
    #[error("the response of {url} is truncated")]
    Truncated {
        /// URL of the response, after redirects.
        url: String,
    },
    /// The fetch was redirected more than `MAX_REDIRECTS` times.
    #[error("more than {MAX_REDIRECTS} redirects")]
    TooManyRedirects,
    /// A server redirected from TLS to plaintext.
    #[error("a redirect from https to http is not followed")]
    TlsDowngrade,
    /// The system has no trust store.
    #[error("this system has no certificate authorities")]
    NoTrustStore,
}
