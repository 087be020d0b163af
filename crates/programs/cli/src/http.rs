//! HTTP requests to admin endpoints over an open connection.

use std::{future::Future, pin::pin, time::Duration};

use bytes::Bytes;
use futures_util::future::{Either, select};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Method, Request,
    client::conn::http1,
    header::{ACCEPT, CONNECTION, HOST},
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};

/// Maximum size of a response body in bytes, enough for the dump of a very large mesh.
const MAX_RESPONSE_BYTES: usize = 1 << 30;
/// Maximum time to wait for the header of a response, and for each frame of its body.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// HTTP response of an admin endpoint.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// Reason why a request got no complete response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("the request cannot be sent")]
    Request(#[from] hyper::http::Error),
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error("nothing came for {IDLE_TIMEOUT:?}")]
    Timeout,
    #[error("the answer is larger than {MAX_RESPONSE_BYTES} bytes")]
    TooLarge,
}

/// Sends a request without a body, and reads the complete response. A truncated response is an error.
pub(crate) async fn request(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    method: Method,
    host: &str,
    path: &str,
) -> Result<HttpResponse, RequestError> {
    send(stream, method, (host, path), Bytes::new()).await
}

/// Sends a request with a body, like [`request`].
pub(crate) async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    method: Method,
    (host, path): (&str, &str),
    body: Bytes,
) -> Result<HttpResponse, RequestError> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, host)
        .header(ACCEPT, "*/*")
        .header(CONNECTION, "close")
        .body(Full::new(body))?;
    let exchange = async move {
        let response = within_timeout(sender.send_request(request)).await??;
        let status = response.status().as_u16();
        let mut rest = response.into_body();
        let mut body = Vec::new();
        while let Some(frame) = within_timeout(rest.frame()).await? {
            if let Ok(data) = frame?.into_data() {
                if body.len() + data.len() > MAX_RESPONSE_BYTES {
                    return Err(RequestError::TooLarge);
                }
                body.extend_from_slice(&data);
            }
        }
        Ok(HttpResponse { status, body })
    };
    match select(pin!(exchange), pin!(connection)).await {
        Either::Left((answer, _)) => answer,
        // The exchange returns the connection's error.
        Either::Right((_, exchange)) => exchange.await,
    }
}

async fn within_timeout<T>(response: impl Future<Output = T>) -> Result<T, RequestError> {
    timeout(IDLE_TIMEOUT, response)
        .await
        .map_err(|_elapsed| RequestError::Timeout)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Serves `bytes` as the response to one request; returns the client's result, and the request as the server read
    /// it.
    async fn receive_response(bytes: &str) -> (Result<(u16, String), RequestError>, String) {
        let (client, mut server) = tokio::io::duplex(1 << 16);
        let serve = async move {
            let mut received = Vec::new();
            while !received.ends_with(b"\r\n\r\n") {
                assert_ne!(server.read_buf(&mut received).await.unwrap(), 0);
            }
            server.write_all(bytes.as_bytes()).await.unwrap();
            String::from_utf8(received).unwrap()
        };
        let ask = request(client, Method::GET, "admin:15000", "/config_dump");
        let (answer, received) = tokio::join!(ask, serve);
        let text = |answer: HttpResponse| (answer.status, String::from_utf8(answer.body).unwrap());
        (answer.map(text), received)
    }

    #[tokio::test]
    async fn bodies_by_length_by_chunks_and_to_the_end() {
        for text in [
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x\r\nc\r\n0\r\n\r\n",
        ] {
            let (answer, received) = receive_response(text).await;
            assert_eq!(answer.unwrap(), (200, "abc".to_owned()), "{text:?}");
            assert!(
                received.starts_with("GET /config_dump HTTP/1.1\r\n"),
                "{received}"
            );
            assert!(received.contains("host: admin:15000\r\n"), "{received}");
        }
    }

    #[tokio::test]
    async fn truncated_responses_are_errors() {
        for cut in [
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nab",
            "HTTP/1.1 200 OK\r\n",
            "",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nab",
            "SSH-2.0\r\n\r\n",
        ] {
            let (answer, _) = receive_response(cut).await;
            let error = answer.expect_err(cut);
            assert!(matches!(error, RequestError::Http(_)), "{cut:?}: {error:?}");
        }
    }
}
