//! Tests of WebSocket over HTTP/2 (RFC 8441), from a client in a tunnel to applications of either HTTP version:
//! policies and routes for the equivalent GET apply to it.

use std::{io::Write as _, net::SocketAddr, time::Duration};

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use h2::{RecvStream, SendStream, client::SendRequest, ext::Protocol};
use http::{Method, Request, Response, StatusCode};

use ambit_system_tests::{LabNetns, Mesh, read_head, wait_until, with_waypoint};

const SERVICES: &str = "
---
apiVersion: v1
kind: Service
metadata: {name: sockets, namespace: shop}
spec:
  selector: {app: server}
  ports:
  - {name: http, port: 80, targetPort: 8081}
  - {name: h2, port: 81, targetPort: 8082, appProtocol: kubernetes.io/h2c}
  - {name: old, port: 82, targetPort: 8083, appProtocol: kubernetes.io/h2c}
";

const NO_SECRETS: &str = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-secrets, namespace: shop}
spec:
  targetRefs: [{kind: Service, name: sockets}]
  action: DENY
  rules: [{to: [{operation: {methods: [GET], paths: [/secret]}}]}]
";

const ROUTE: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: sockets, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: sockets, port: 80}]
  rules:
  - matches: [{method: GET, path: {value: /routed}, headers: [{name: upgrade, value: websocket}]}]
    backendRefs: [{name: sockets, port: 81}]
  - matches: [{method: CONNECT, path: {value: /}}]
    filters: [{type: RequestRedirect, requestRedirect: {statusCode: 302}}]
  - backendRefs: [{name: sockets, port: 80}]
";

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

/// Returns the server's value of `Sec-WebSocket-Accept` for the key in a request head.
fn accept_key(head: &str) -> String {
    let lines = head.lines();
    let mut keys = lines.filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_key = name.eq_ignore_ascii_case("sec-websocket-key");
        is_key.then(|| value.trim().to_owned())
    });
    let key = keys.next().expect("a key");
    assert!(keys.next().is_none() && key.len() == 24, "{head}");
    let whole = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, whole.as_bytes()))
}

/// Starts an HTTP/1.1 application that echoes after the upgrade, except for paths with other responses.
fn serve_http1(mesh: &Mesh) {
    mesh.serve_connections("shop/server", 8081, |mut stream| {
        while let Some(head) = read_head(&mut stream)? {
            let lower = head.to_ascii_lowercase();
            if head.starts_with("GET /plain ") {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nplain")?;
                continue;
            }
            if !lower.contains("\r\nupgrade: websocket\r\n") {
                stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")?;
                continue;
            }
            let accept = if head.starts_with("GET /forged ") {
                "AAAAAAAAAAAAAAAAAAAAAAAAAAA=".to_owned()
            } else {
                accept_key(&head)
            };
            write!(stream, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\nX-Version: 1\r\n\r\nhello ")?;
            let mut reader = stream.try_clone()?;
            std::io::copy(&mut reader, &mut stream)?;
            return stream.shutdown(std::net::Shutdown::Write);
        }
        Ok(())
    });
}

async fn echo(request: Request<RecvStream>, mut respond: h2::server::SendResponse<Bytes>) {
    let protocol = request.extensions().get::<Protocol>();
    let is_one = protocol.is_some_and(|one| one.as_str() == "websocket");
    let has_key = request.headers().contains_key("sec-websocket-key");
    if !is_one || has_key || *request.method() != Method::CONNECT {
        let response = Response::builder().status(400).body(()).unwrap();
        respond.send_response(response, true).unwrap();
        return;
    }
    let response = Response::builder()
        .header("x-version", "2")
        .body(())
        .unwrap();
    let mut send = respond.send_response(response, false).unwrap();
    send.send_data("hello ".into(), false).unwrap();
    let mut body = request.into_body();
    while let Some(Ok(data)) = body.data().await {
        body.flow_control().release_capacity(data.len()).unwrap();
        send.send_data(data, false).unwrap();
    }
    let _gone = send.send_data(Bytes::new(), true);
}

/// Starts an HTTP/2 application; `offers` is whether it supports extended CONNECT for WebSocket.
fn serve_http2(mesh: &Mesh, port: u16, offers: bool) {
    mesh.serve_connections("shop/server", port, move |stream| {
        stream.set_nonblocking(true)?;
        runtime().block_on(async {
            let stream = tokio::net::TcpStream::from_std(stream)?;
            let mut builder = h2::server::Builder::new();
            if offers {
                builder.enable_connect_protocol();
            }
            let connection = builder.handshake(stream).await;
            let mut connection = connection.map_err(std::io::Error::other)?;
            while let Some(request) = connection.accept().await {
                let (request, respond) = request.map_err(std::io::Error::other)?;
                tokio::spawn(echo(request, respond));
            }
            Ok(())
        })
    });
}

/// Returns an HTTP/2 client in a pod, once the waypoint has announced support for extended CONNECT.
async fn client(mesh: &Mesh, address: SocketAddr) -> SendRequest<Bytes> {
    let place = LabNetns::Pod("shop/client".into());
    let stream = mesh.client().dial(place, address).unwrap();
    stream.set_nonblocking(true).unwrap();
    let stream = tokio::net::TcpStream::from_std(stream).unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let client = client.ready().await.unwrap();
    let offered = async {
        while !client.is_extended_connect_protocol_enabled() {
            tokio::task::yield_now().await;
        }
    };
    let offered = tokio::time::timeout(Duration::from_secs(30), offered).await;
    offered.expect("the waypoint offers extended CONNECT");
    client
}

struct WebSocketStream {
    status: StatusCode,
    version: String,
    send: SendStream<Bytes>,
    body: RecvStream,
}

async fn open(client: &SendRequest<Bytes>, path: &str, protocol: &'static str) -> WebSocketStream {
    let request = Request::builder()
        .method(Method::CONNECT)
        .uri(format!("http://sockets.shop{path}"))
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "not of HTTP/2")
        .extension(Protocol::from_static(protocol));
    let mut ready = client.clone().ready().await.unwrap();
    let (answer, send) = ready
        .send_request(request.body(()).unwrap(), false)
        .unwrap();
    let answer = answer.await.unwrap();
    assert!(!answer.headers().contains_key("sec-websocket-accept"));
    let version = answer.headers().get("x-version");
    let version = version.map_or("", |one| one.to_str().unwrap()).to_owned();
    WebSocketStream {
        status: answer.status(),
        version,
        send,
        body: answer.into_body(),
    }
}

impl WebSocketStream {
    async fn expect_received(&mut self, expected: &str) {
        let mut received = String::new();
        while received.len() < expected.len() {
            let data = self.body.data().await.expect("more").unwrap();
            let flow = self.body.flow_control();
            flow.release_capacity(data.len()).unwrap();
            received += std::str::from_utf8(&data).unwrap();
        }
        assert_eq!(received, expected);
    }

    fn send_text(&mut self, text: &'static str, is_end: bool) {
        self.send.send_data(text.into(), is_end).unwrap();
    }
}

fn handshake_status(mesh: &Mesh, address: SocketAddr, path: &str, protocol: &'static str) -> u16 {
    runtime().block_on(async {
        let client = client(mesh, address).await;
        open(&client, path, protocol).await.status.as_u16()
    })
}

/// Checks WebSocket frames in both directions, several streams on one connection, and the end of each stream.
fn assert_frames_pass(mesh: &Mesh, address: SocketAddr, path: &str, version: &str) {
    runtime().block_on(async {
        let client = client(mesh, address).await;
        let mut first = open(&client, path, "websocket").await;
        let mut second = open(&client, path, "websocket").await;
        for socket in [&mut first, &mut second] {
            assert_eq!(socket.status, 200);
            assert_eq!(socket.version, version);
            socket.send_text("one ", false);
            socket.expect_received("hello one ").await;
            socket.send_text("two", true);
            socket.expect_received("two").await;
            // Ended in order, perhaps by a frame without data.
            while let Some(data) = socket.body.data().await {
                assert_eq!(data.unwrap(), "");
            }
        }
    });
}

#[test]
fn websocket_over_http_2_reaches_applications_of_either_version() {
    let (mesh, _) = with_waypoint(SERVICES);
    serve_http1(&mesh);
    serve_http2(&mesh, 8082, true);
    serve_http2(&mesh, 8083, false);
    let [front, h2, old] = [80, 81, 82].map(|port| mesh.service_address("sockets.shop.svc", port));
    assert_frames_pass(&mesh, front, "/a", "1");
    assert_frames_pass(&mesh, h2, "/a", "2");
    // Neither a response without an upgrade nor an incorrect 101 switches to WebSocket.
    for (address, path, expected) in [
        (front, "/plain", 502),
        (front, "/forged", 502),
        (old, "/a", 503),
    ] {
        assert_eq!(
            handshake_status(&mesh, address, path, "websocket"),
            expected,
            "{path}"
        );
    }
    for protocol in ["connect-udp", "WebSocket", "h2c"] {
        assert_eq!(
            handshake_status(&mesh, front, "/a", protocol),
            501,
            "{protocol}"
        );
    }
    // A plain CONNECT.
    let plain = runtime().block_on(async {
        let mut client = client(&mesh, front).await;
        let request = Request::connect("sockets.shop:80").body(()).unwrap();
        let (answer, _) = client.send_request(request, true).unwrap();
        answer.await.unwrap().status().as_u16()
    });
    assert_eq!(plain, 405);
}

#[test]
fn policies_and_routes_apply_to_websocket_over_http_2() {
    let (mesh, _) = with_waypoint(SERVICES);
    serve_http1(&mesh);
    serve_http2(&mesh, 8082, true);
    let front = mesh.service_address("sockets.shop.svc", 80);
    mesh.apply("route", ROUTE);
    wait_until("the route forwards to the application of HTTP/2", || {
        runtime().block_on(async {
            let client = client(&mesh, front).await;
            open(&client, "/routed", "websocket").await.version == "2"
        })
    });
    assert_frames_pass(&mesh, front, "/routed", "2");
    assert_frames_pass(&mesh, front, "/other", "1");
    // An open stream ends when it is denied, and cannot be opened again.
    runtime().block_on(async {
        let client = client(&mesh, front).await;
        let mut socket = open(&client, "/secret", "websocket").await;
        socket.expect_received("hello ").await;
        mesh.apply("policy", NO_SECRETS);
        let ended = async { while let Some(Ok(_)) = socket.body.data().await {} };
        let ended = tokio::time::timeout(ambit_system_tests::TIMEOUT, ended).await;
        ended.expect("the policy ends it");
    });
    for path in ["/secret", "//secret", "/a/../secret"] {
        assert_eq!(
            handshake_status(&mesh, front, path, "websocket"),
            403,
            "{path}"
        );
    }
    assert_frames_pass(&mesh, front, "/other", "1");
}
