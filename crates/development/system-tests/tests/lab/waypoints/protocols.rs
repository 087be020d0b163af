//! Tests of kinds of traffic, end to end through real proxies and a waypoint: the application receives the client's
//! bytes, and the client the application's.

use std::{
    io::{Read as _, Write as _},
    net::SocketAddr,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use ambit_system_tests::{Mesh, read_head, wait_until, with_waypoint};
use bytes::Bytes;
use h2::{RecvStream, SendStream, client::SendRequest};
use http::{HeaderMap, HeaderValue, Request, Response};

const NO_SECRETS: &str = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-secrets, namespace: shop}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: waypoint}]
  action: DENY
  rules: [{to: [{operation: {paths: [/shop.Secrets/*]}}]}]
";
/// Number of bytes that exceeds all flow-control windows and buffers between both ends.
const LARGE_BODY_BYTES: usize = 64 << 20;

fn status_of(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

fn exchange(mesh: &Mesh, address: SocketAddr, request: &str, enough: &str) -> String {
    let mut connection = mesh.dial("shop/client", address).unwrap();
    connection
        .send_raw(request.as_bytes(), |answer| answer.contains(enough))
        .unwrap()
}

#[test]
fn http_1_variants_pass_the_waypoint() {
    let (mesh, _) = with_waypoint("");
    let app = mesh.serve_connections("shop/server", 8081, |mut stream| {
        while let Some(head) = read_head(&mut stream)? {
            let head = head.to_ascii_lowercase();
            if head.starts_with("get /socket ") {
                assert!(head.contains("upgrade: websocket"), "{head}");
                stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")?;
                let mut reader = stream.try_clone()?;
                return std::io::copy(&mut reader, &mut stream).map(drop);
            }
            if head.starts_with("post /refused ") {
                stream.write_all(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
                return Ok(());
            }
            if head.starts_with("post /asked ") {
                let mut body = Vec::new();
                while !body.ends_with(b"hello\r\n0\r\n\r\n") && body != b"hello" {
                    let mut byte = [0];
                    stream.read_exact(&mut byte)?;
                    body.extend(byte);
                }
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole")?;
        }
        Ok(())
    });
    // HTTP/1.0, with a host and without: the connection ends with the response.
    for host in ["", "Host: app\r\n"] {
        let answer = exchange(&mesh, app, &format!("GET / HTTP/1.0\r\n{host}\r\n"), "\0");
        assert!(
            status_of(&answer) == "200" && answer.ends_with("whole"),
            "{answer}"
        );
    }
    // A body with `Expect: 100-continue`, which the application requests.
    let mut asked = mesh.dial("shop/client", app).unwrap();
    let head =
        b"POST /asked HTTP/1.1\r\nHost: app\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
    let continues = asked
        .send_raw(head, |answer| answer.ends_with("\r\n\r\n"))
        .unwrap();
    assert_eq!(status_of(&continues), "100");
    let answer = asked
        .send_raw(b"hello", |answer| answer.ends_with("whole"))
        .unwrap();
    assert_eq!(status_of(&answer), "200");
    // A body that the application rejects.
    let head =
        "POST /refused HTTP/1.1\r\nHost: app\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
    let answer = exchange(&mesh, app, head, " 413 ");
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    // An upgrade to another protocol.
    let mut socket = mesh.dial("shop/client", app).unwrap();
    let upgrade =
        b"GET /socket HTTP/1.1\r\nHost: app\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let switched = socket
        .send_raw(upgrade, |answer| answer.ends_with("\r\n\r\n"))
        .unwrap();
    assert_eq!(status_of(&switched), "101");
    socket.exchange_line("\u{1} a frame").unwrap();
    socket.exchange_line("GET / HTTP/1.1\r\n\r\n").unwrap();
}

#[test]
fn non_http_passes_through_from_either_side() {
    let (mesh, waypoint) = with_waypoint("");
    let greets = mesh.serve_connections("shop/server", 8082, |mut stream| {
        let caller = stream.peer_addr()?.ip();
        stream.write_all(format!("220 hello {caller}\r\n").as_bytes())?;
        let mut reader = stream.try_clone()?;
        std::io::copy(&mut reader, &mut stream).map(drop)
    });
    let mut client = mesh.dial("shop/client", greets).unwrap();
    let greeting = client
        .send_raw(b"", |answer| answer.ends_with("\r\n"))
        .unwrap();
    assert_eq!(greeting, format!("220 hello {waypoint}\r\n"));
    client.exchange_line("EHLO me\r\n").unwrap();
    // A TLS ClientHello and further bytes, unchanged.
    let echo = SocketAddr::new(mesh.ip("shop/server"), 9000);
    let mut tls = mesh.dial("shop/client", echo).unwrap();
    tls.exchange_line("\u{16}\u{3}\u{1}\u{0}\u{5}\u{1}\u{0}\u{0}\u{1}\u{3}")
        .unwrap();
    tls.exchange_line(&"\u{17}\u{3}\u{3}".repeat(1000)).unwrap();
}

/// Sends a request over TLS, which the application terminates, and returns the response.
fn request_over_tls(
    stream: std::net::TcpStream,
    config: &Arc<rustls::ClientConfig>,
) -> std::io::Result<String> {
    let name = "secure.example".try_into().unwrap();
    let tls = rustls::ClientConnection::new(config.clone(), name).unwrap();
    let mut stream = rustls::StreamOwned::new(tls, stream);
    stream.write_all(b"hello")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn tls_passes_through_to_the_application() {
    let (mesh, waypoint) = with_waypoint("");
    let signed = rcgen::generate_simple_self_signed(["secure.example".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(signed.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![signed.cert.der().clone()], key.into())
        .unwrap();
    let server = Arc::new(server);
    let app = mesh.serve_connections("shop/server", 8084, move |stream| {
        let caller = stream.peer_addr()?.ip();
        let tls = rustls::ServerConnection::new(server.clone()).map_err(std::io::Error::other)?;
        let mut stream = rustls::StreamOwned::new(tls, stream);
        let mut received = [0; 5];
        stream.read_exact(&mut received)?;
        let name = stream.conn.server_name().unwrap_or_default().to_owned();
        write!(stream, "{name} for {caller}: ")?;
        stream.write_all(&received)?;
        stream.conn.send_close_notify();
        stream.flush()
    });
    let mut roots = rustls::RootCertStore::empty();
    roots.add(signed.cert.der().clone()).unwrap();
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let config = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        let place = ambit_system_tests::LabNetns::Pod("shop/client".into());
        let stream = mesh.client().dial(place, app).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let answer = request_over_tls(stream, &Arc::new(config)).unwrap();
        assert_eq!(answer, format!("secure.example for {waypoint}: hello"));
    }
}

/// Returns the resident memory of a waypoint's processes.
fn waypoint_memory(mesh: &Mesh) -> usize {
    let sum = "for process in /proc/[0-9]*; do case $(readlink $process/exe) in *ambit-waypoint) \
               grep VmRSS $process/status;; esac; done";
    let lines = mesh.run("shop/waypoint", &["sh", "-c", sum]);
    let sizes = lines
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1)?.parse::<usize>().ok());
    sizes.sum::<usize>() << 10
}

#[test]
fn slow_reader_affects_only_itself() {
    let (mesh, _) = with_waypoint("");
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Arc::new(std::sync::Mutex::new(wait));
    let app = mesh.serve_connections("shop/server", 8081, move |mut stream| {
        // The waypoint may open a connection without data, in order to learn which side sends
        // first.
        let Some(head) = read_head(&mut stream)? else {
            return Ok(());
        };
        if head.starts_with("GET") {
            write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Length: {LARGE_BODY_BYTES}\r\n\r\n"
            )?;
            let piece = vec![b'x'; 1 << 20];
            return (0..LARGE_BODY_BYTES >> 20).try_for_each(|_| stream.write_all(&piece));
        }
        // The application reads the body only on command.
        let _told = wait.lock().unwrap().recv();
        let read = std::io::copy(
            &mut stream.try_clone()?.take(LARGE_BODY_BYTES as u64),
            &mut std::io::sink(),
        )?;
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{read}")
    });
    let direct = format!("http://{}:8080/", mesh.ip("shop/server"));
    let before = waypoint_memory(&mesh);
    let place = || ambit_system_tests::LabNetns::Pod("shop/client".into());
    let dial = || mesh.client().dial(place(), app).unwrap();
    // An unread response, and an unread body.
    let mut down = dial();
    down.write_all(b"GET /down HTTP/1.1\r\nHost: app\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut up = dial();
    let mut written = up.try_clone().unwrap();
    let uploading = thread::spawn(move || {
        let head = format!(
            "POST /up HTTP/1.1\r\nHost: app\r\nContent-Length: {LARGE_BODY_BYTES}\r\nConnection: close\r\n\r\n"
        );
        written.write_all(head.as_bytes()).unwrap();
        let piece = vec![b'y'; 1 << 20];
        (0..LARGE_BODY_BYTES >> 20)
            .try_for_each(|_| written.write_all(&piece))
            .unwrap();
    });
    for _ in 0..20 {
        mesh.get("shop/client", &direct).ok();
    }
    assert!(!uploading.is_finished(), "the upload was buffered");
    let grown = waypoint_memory(&mesh).saturating_sub(before);
    assert!(grown < LARGE_BODY_BYTES, "{grown} bytes for two that wait");
    // All bytes arrive, once they are read.
    go.send(()).unwrap();
    uploading.join().unwrap();
    up.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut answer = String::new();
    up.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with(&LARGE_BODY_BYTES.to_string()), "{answer}");
    down.set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let read = std::io::copy(&mut down, &mut std::io::sink()).unwrap();
    assert!(read > LARGE_BODY_BYTES as u64, "{read}");
}

/// Serves gRPC by [`serve_grpc`] on a port of the server.
pub(crate) fn serve_grpc_on(mesh: &Mesh, port: u16) -> SocketAddr {
    mesh.serve_connections("shop/server", port, |stream| {
        stream.set_nonblocking(true)?;
        runtime().block_on(async {
            let stream = tokio::net::TcpStream::from_std(stream)?;
            serve_grpc(stream).await.map_err(std::io::Error::other)
        })
    })
}

/// Makes a gRPC call with three messages, and returns the `grpc-status`.
pub(crate) fn call_grpc(mesh: &Mesh, address: SocketAddr, path: &str) -> String {
    let place = ambit_system_tests::LabNetns::Pod("shop/client".into());
    let stream = mesh.client().dial(place, address).unwrap();
    stream.set_nonblocking(true).unwrap();
    runtime().block_on(async {
        let stream = tokio::net::TcpStream::from_std(stream).unwrap();
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let mut opened = start_call(&client, path).await;
        for _ in 0..3 {
            opened.exchange_message(b"\0\0\0\0\x05hello").await;
        }
        opened.finish().await
    })
}

/// Serves gRPC: echoes each message; the `grpc-status` is the last segment of the path.
async fn serve_grpc(stream: tokio::net::TcpStream) -> Result<(), h2::Error> {
    let mut connection = h2::server::handshake(stream).await?;
    while let Some(request) = connection.accept().await {
        let (request, mut respond) = request?;
        tokio::spawn(async move {
            let status = request.uri().path().rsplit('/').next().unwrap().to_owned();
            assert_eq!(request.headers()["te"], "trailers");
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_str(&status).unwrap());
            let response = Response::builder().header("content-type", "application/grpc");
            let mut send = respond
                .send_response(response.body(()).unwrap(), false)
                .unwrap();
            let mut body = request.into_body();
            while let Some(Ok(data)) = body.data().await {
                body.flow_control().release_capacity(data.len()).unwrap();
                send.send_data(data, false).unwrap();
            }
            send.send_trailers(trailers).unwrap();
        });
    }
    Ok(())
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

struct GrpcCall {
    send: SendStream<Bytes>,
    answer: RecvStream,
    status: Option<String>,
}

async fn start_call(client: &SendRequest<Bytes>, path: &str) -> GrpcCall {
    let request = Request::post(format!("http://app{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    let mut ready = client.clone().ready().await.unwrap();
    let (answer, send) = ready
        .send_request(request.body(()).unwrap(), false)
        .unwrap();
    let answer = answer.await.unwrap();
    assert_eq!(answer.status(), 200, "{answer:?}");
    let status = answer.headers().get("grpc-status");
    let status = status.map(|status| status.to_str().unwrap().to_owned());
    GrpcCall {
        send,
        answer: answer.into_body(),
        status,
    }
}

impl GrpcCall {
    /// Sends a message on the call, and waits for its echo.
    async fn exchange_message(&mut self, message: &'static [u8]) {
        self.send
            .send_data(Bytes::from_static(message), false)
            .unwrap();
        let mut received = Vec::new();
        while received.len() < message.len() {
            let data = self.answer.data().await.unwrap().unwrap();
            self.answer
                .flow_control()
                .release_capacity(data.len())
                .unwrap();
            received.extend_from_slice(&data);
        }
        assert_eq!(received, message);
    }

    /// Ends the call, and returns the `grpc-status` in the trailers.
    async fn finish(mut self) -> String {
        self.send.send_data(Bytes::new(), true).unwrap();
        while self.answer.data().await.is_some() {}
        let trailers = self.answer.trailers().await.unwrap().unwrap();
        trailers["grpc-status"].to_str().unwrap().to_owned()
    }
}

#[test]
fn grpc_streams_both_directions_with_its_status() {
    let (mesh, _) = with_waypoint("");
    mesh.apply("policy", NO_SECRETS);
    let app = serve_grpc_on(&mesh, 8083);
    let mesh = &mesh;
    let open = || {
        let place = ambit_system_tests::LabNetns::Pod("shop/client".into());
        let stream = mesh.client().dial(place, app).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    };
    let ask = |path: &'static str| {
        runtime().block_on(async {
            let stream = tokio::net::TcpStream::from_std(open()).unwrap();
            let (client, connection) = h2::client::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            let mut opened = start_call(&client, path).await;
            // A bidirectional stream: each message is answered before the next is sent.
            let mut other = start_call(&client, "/shop.Orders/Other/0").await;
            for _ in 0..3 {
                opened.exchange_message(b"\0\0\0\0\x05hello").await;
                other.exchange_message(b"\0\0\0\0\x02hi").await;
            }
            assert_eq!(other.finish().await, "0");
            opened.finish().await
        })
    };
    assert_eq!(ask("/shop.Orders/Ok/0"), "0");
    assert_eq!(ask("/shop.Orders/Missing/5"), "5");
    wait_until("the policy refuses with a status of gRPC", || {
        runtime().block_on(async {
            let stream = tokio::net::TcpStream::from_std(open()).unwrap();
            let (client, connection) = h2::client::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            let refused = start_call(&client, "/shop.Secrets/All/0").await;
            refused.status.as_deref() == Some("7")
        })
    });
}

/// Serves HTTP/2; responses contain the requested host, and the number of headers that contain it.
async fn serve_hosts(stream: tokio::net::TcpStream) -> Result<(), h2::Error> {
    let mut connection = h2::server::handshake(stream).await?;
    while let Some(request) = connection.accept().await {
        let (request, mut respond) = request?;
        let authority = request.uri().authority().map(ToString::to_string);
        let hosts = request.headers().get_all("host").iter().count();
        let seen = format!("{} and {hosts}", authority.unwrap_or_default());
        let response = Response::builder().header("x-seen", seen).body(()).unwrap();
        respond.send_response(response, true)?;
    }
    Ok(())
}

#[test]
fn host_header_must_equal_the_authority_over_http_2() {
    let (mesh, _) = with_waypoint("");
    mesh.apply("policy", NO_SECRETS);
    let app = mesh.serve_connections("shop/server", 8085, |stream| {
        stream.set_nonblocking(true)?;
        runtime().block_on(async {
            let stream = tokio::net::TcpStream::from_std(stream)?;
            serve_hosts(stream).await.map_err(std::io::Error::other)
        })
    });
    let request = |path: &str, hosts: &[&str]| {
        let place = ambit_system_tests::LabNetns::Pod("shop/client".into());
        let stream = mesh.client().dial(place, app).unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut request = Request::get(format!("http://app.example{path}"));
        for host in hosts {
            request = request.header("host", *host);
        }
        runtime().block_on(async {
            let stream = tokio::net::TcpStream::from_std(stream).unwrap();
            let (client, connection) = h2::client::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            let mut ready = client.ready().await.unwrap();
            let request = request.body(()).unwrap();
            let (answer, _) = ready.send_request(request, true).unwrap();
            let answer = answer.await.ok()?;
            let seen = answer.headers().get("x-seen");
            let seen = seen.map(|seen| seen.to_str().unwrap().to_owned());
            Some((answer.status().as_u16(), seen))
        })
    };
    // Without a policy for requests, a connection whose first bytes are late would pass as one that is not HTTP.
    wait_until("requests are authorized", || {
        request("/shop.Secrets/All", &[]).is_some_and(|(status, _)| status == 403)
    });
    let ask = |hosts: &[&str]| request("/", hosts).unwrap();
    let seen = (200, Some("app.example and 0".to_owned()));
    assert_eq!(ask(&[]), seen);
    assert_eq!(ask(&["app.example"]), seen);
    for hosts in [&["other.example"][..], &["app.example", "other.example"]] {
        assert_eq!(ask(hosts), (400, None), "{hosts:?}");
    }
}
