//! Errors of fetching.

use std::{error::Error, io};

use ambit_egress::ConnectError;
use http::StatusCode;

/// Maximum redirects of a fetch.
pub(crate) const MAX_REDIRECTS: usize = 5;

/// Error of a fetch. URLs are without queries, in which redirects may have signatures that grant access.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// URL that is not of a server of HTTP.
    #[error("{0:?} is not a URL of http or https")]
    Url(String),
    /// Host without an address that responds and that the guard permits.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Addresses that the object's [`Admission`](crate::Admission) refuses.
    #[error(transparent)]
    Refused(Box<dyn Error + Send + Sync>),
    /// Failed TLS handshake.
    #[error("no TLS with {host}")]
    Tls {
        /// Host of the URL.
        host: String,
        /// Cause of the error.
        #[source]
        error: io::Error,
    },
    /// Peer that violates HTTP.
    #[error("the response of {host} is not valid HTTP")]
    Http {
        /// Host of the URL.
        host: String,
        /// Cause of the error.
        #[source]
        error: hyper::Error,
    },
    /// Response of another status than 200.
    #[error("{url} responds with {status}")]
    Status {
        /// URL after redirects.
        url: String,
        /// Status of the response.
        status: StatusCode,
    },
    /// Body that exceeds the limit.
    #[error("the response of {url} is longer than {limit} bytes")]
    TooLarge {
        /// URL after redirects.
        url: String,
        /// Limit in bytes.
        limit: usize,
    },
    /// Body that ends too early.
    #[error("the response of {url} is truncated")]
    Truncated {
        /// URL after redirects.
        url: String,
    },
    /// Chain of redirects that is too long.
    #[error("more than {MAX_REDIRECTS} redirects")]
    Redirects,
    /// Redirect to a server without TLS.
    #[error("a redirect from https to http is not followed")]
    Downgrade,
    /// System without certificate authorities.
    #[error("this system has no certificate authorities")]
    Roots,
}
