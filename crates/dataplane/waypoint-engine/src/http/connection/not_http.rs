//! Rejects connections that are not HTTP at ports with undeclared protocol, if the target has routes, policies, JWT
//! rules, plugins or rate limits for requests, which such connections would bypass.

use std::time::Duration;

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    time::timeout,
};

use super::failure;
use crate::session::Session;

/// Time for which a rejected client may keep sending, so that it can read the error response.
const LINGER_TIME: Duration = Duration::from_secs(2);
/// Maximum bytes that are read from a rejected client while lingering.
const MAX_LINGER_BYTES: u64 = 64 << 10;

/// Reason why a connection is rejected as not HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotHttpReason {
    /// Connection whose first bytes are not HTTP.
    InvalidFirstBytes,
    /// Connection whose first line is not complete in time.
    IncompleteLine,
    /// Connection whose client sends nothing.
    NoBytes,
}

impl NotHttpReason {
    /// Returns the reason label of the rejection counter.
    fn reason(self) -> &'static str {
        match self {
            Self::InvalidFirstBytes | Self::NoBytes => "not_http",
            Self::IncompleteLine => "headers_too_slow",
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::InvalidFirstBytes => {
                "the connection does not begin with a request of HTTP/1.x or HTTP/2"
            }
            Self::IncompleteLine => "the first line of the connection did not end in time",
            Self::NoBytes => "the client sent nothing in time (does the server speak first?)",
        }
    }
}

/// Rejects a connection that is not HTTP with an error response, and counts and logs it.
pub(crate) async fn refuse_connection<IO>(session: &Session, mut io: IO, why: NotHttpReason)
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let object = session.object_requiring_http();
    let object = object.unwrap_or_else(|| "an HTTPRoute or GRPCRoute".to_owned());
    let port = session.target.address().port();
    let text = format!(
        "{}; {object} is for requests to port {port}, whose protocol no Service declares: if it is not HTTP, set \
         appProtocol: tcp",
        why.description()
    );
    let status = if why == NotHttpReason::InvalidFirstBytes {
        400
    } else {
        0
    };
    failure::report_rejected(session, status, why.reason(), &text);
    if status == 0 {
        return;
    }
    let response = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{text}",
        text.len()
    );
    let answering = async {
        io.write_all(response.as_bytes()).await?;
        io.shutdown().await?;
        let mut rest = io.take(MAX_LINGER_BYTES);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
    };
    if let Ok(Err(error)) = timeout(LINGER_TIME, answering).await {
        tracing::debug!(%error, "a client that is refused has gone");
    }
}
