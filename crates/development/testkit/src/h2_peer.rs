//! Scripted HTTP/2 server: runs the test's script, and panics on anything unexpected.

use bytes::Bytes;
use h2::{Reason, RecvStream, server::SendResponse};
use http::{Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};

/// Scripted server side of one HTTP/2 connection.
pub struct H2Peer<S> {
    connection: h2::server::Connection<S, Bytes>,
}

impl<S> std::fmt::Debug for H2Peer<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("H2Peer")
    }
}

/// CONNECT request that awaits its response.
#[derive(Debug)]
pub struct Tunnel {
    /// Head of the client's CONNECT request.
    pub request: Request<()>,
    /// Bytes that the client sends.
    pub body: RecvStream,
    respond: SendResponse<Bytes>,
}

/// Tunnel established by a 200 response to CONNECT.
#[derive(Debug)]
pub struct OpenTunnel {
    /// Bytes that the client sends.
    pub body: RecvStream,
    /// Stream of the response, to send bytes to the client.
    pub send: h2::SendStream<Bytes>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> H2Peer<S> {
    /// Completes the server side of the HTTP/2 handshake; `max_streams` is the maximum of concurrent streams.
    pub async fn accept(io: S, max_streams: u32) -> Self {
        let connection = h2::server::Builder::new()
            .max_concurrent_streams(max_streams)
            .handshake(io)
            .await
            .expect("an HTTP/2 opening");
        Self { connection }
    }

    /// Waits for the next CONNECT request; panics if its `:authority` is another one.
    pub async fn expect_connect(&mut self, authority: &str) -> Tunnel {
        let tunnel = self
            .next()
            .await
            .expect("a CONNECT, but the client closed the connection");
        assert_eq!(tunnel.request.method(), http::Method::CONNECT);
        let got = tunnel.request.uri().authority().map(ToString::to_string);
        assert_eq!(got.as_deref(), Some(authority));
        tunnel
    }

    /// Waits for the next request; `None` when the client closes the connection.
    pub async fn next(&mut self) -> Option<Tunnel> {
        let (request, respond) = self.connection.accept().await?.expect("a request");
        let (head, body) = request.into_parts();
        Some(Tunnel {
            request: Request::from_parts(head, ()),
            body,
            respond,
        })
    }

    /// Sends GOAWAY; open streams continue.
    pub fn goaway(&mut self) {
        self.connection.graceful_shutdown();
    }

    /// Ends the connection with this HTTP/2 error code.
    pub async fn abort(mut self, reason: Reason) {
        self.connection.abrupt_shutdown(reason);
        while self.connection.accept().await.is_some() {}
    }

    /// Drives the connection until the client closes it; panics if the client sends another request.
    pub async fn serve_until_closed(mut self) {
        if let Some(tunnel) = self.next().await {
            panic!("unexpected request: {:?}", tunnel.request);
        }
    }

    /// Drives the connection while another future runs, and returns its result.
    pub async fn drive_while<T>(&mut self, work: impl Future<Output = T>) -> T {
        tokio::select! {
            done = work => done,
            next = self.connection.accept() => match next {
                Some(Ok((request, _))) => panic!("unexpected request: {request:?}"),
                Some(Err(error)) => panic!("connection failed: {error}"),
                None => panic!("the client closed the connection"),
            },
        }
    }
}

impl Tunnel {
    /// Responds to CONNECT with status 200.
    pub fn accept(self) -> OpenTunnel {
        self.accept_with(|response| response)
    }

    /// Responds to CONNECT with status 200 and headers.
    pub fn accept_with(
        mut self,
        change: impl FnOnce(http::response::Builder) -> http::response::Builder,
    ) -> OpenTunnel {
        let response = change(Response::builder().status(StatusCode::OK)).body(());
        let send = self
            .respond
            .send_response(response.expect("a response"), false)
            .expect("the answer to be sent");
        OpenTunnel {
            body: self.body,
            send,
        }
    }

    /// Responds to CONNECT with an error status, and ends the stream.
    pub fn refuse(mut self, status: u16) {
        let response = Response::builder()
            .status(status)
            .body(())
            .expect("a status");
        self.respond
            .send_response(response, true)
            .expect("the answer to be sent");
    }

    /// Resets the stream with this HTTP/2 error code, without a response.
    pub fn reset(mut self, reason: Reason) {
        self.respond.send_reset(reason);
    }
}

impl OpenTunnel {
    /// Reads exactly `expected`, and returns the flow-control credit to the client.
    pub async fn expect_data(&mut self, expected: &[u8]) {
        let mut got = Vec::new();
        while got.len() < expected.len() {
            let data = self
                .body
                .data()
                .await
                .expect("more data")
                .expect("no error");
            self.body
                .flow_control()
                .release_capacity(data.len())
                .expect("capacity");
            got.extend_from_slice(&data);
        }
        assert_eq!(got, expected);
    }

    /// Waits for the client's END_STREAM.
    pub async fn expect_end(&mut self) {
        if let Some(data) = self.body.data().await {
            let data = data.expect("no error");
            assert!(data.is_empty(), "unexpected data: {data:?}");
        }
        assert!(self.body.is_end_stream());
    }

    /// Sends bytes to the client; `last` ends the stream.
    pub fn send(&mut self, bytes: &'static [u8], last: bool) {
        self.send
            .send_data(Bytes::from_static(bytes), last)
            .expect("data to be sent");
    }

    /// Resets the tunnel's stream with this HTTP/2 error code.
    pub fn reset(&mut self, reason: Reason) {
        self.send.send_reset(reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn scripted_tunnel_runs_its_script() {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let client = ambit_rt::spawn("client", async move {
            let (mut send, connection) = h2::client::handshake(near).await.unwrap();
            let driver = ambit_rt::spawn_abortable("driver", async move {
                connection.await.ok();
            });
            let request = Request::connect("10.0.0.1:80").body(()).unwrap();
            let (response, mut body) = send.send_request(request, false).unwrap();
            let response = response.await.unwrap();
            assert_eq!(response.headers()["baggage"], "k8s.pod.name=b");
            body.send_data(Bytes::from_static(b"ping"), true).unwrap();
            let answer = response.into_body().data().await.unwrap().unwrap();
            assert_eq!(&answer[..], b"pong");
            let (refused, _) = send
                .send_request(Request::connect("10.0.0.2:80").body(()).unwrap(), true)
                .unwrap();
            assert_eq!(refused.await.unwrap().status(), 401);
            drop((send, driver));
        });
        let mut peer = H2Peer::accept(far, 100).await;
        let tunnel = peer.expect_connect("10.0.0.1:80").await;
        let mut open = tunnel.accept_with(|response| response.header("baggage", "k8s.pod.name=b"));
        peer.drive_while(async {
            open.expect_data(b"ping").await;
            open.expect_end().await;
        })
        .await;
        open.send(b"pong", true);
        peer.expect_connect("10.0.0.2:80").await.refuse(401);
        peer.serve_until_closed().await;
        client.await.unwrap();
    }
}
