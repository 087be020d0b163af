//! Tests of the admin server with malformed, slow and silent peers.

use crate::testing::within;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::*;
use crate::{DrainMode, drain};

async fn start(options: ServerOptions) -> (SocketAddr, crate::Drain) {
    let (drain, watcher) = drain::channel();
    let listener = bind("127.0.0.1:0".parse().unwrap(), "tests").await.unwrap();
    let address = listener.local_addr().unwrap();
    spawn("server", async move {
        serve(
            "test",
            listener,
            options,
            watcher,
            |request: Request| async move {
                match request.uri().path() {
                    "/echo" => text(200, request.into_body()),
                    _ => not_found(),
                }
            },
        )
        .await;
    });
    (address, drain)
}

async fn exchange(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // A server that refuses a body early may reset the connection after its answer.
    stream.read_to_end(&mut answer).await.ok();
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn a_body_reaches_the_handler() {
    within(async {
        let (address, _drain) = start(ServerOptions::default()).await;
        let answer = exchange(
            address,
            "POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi",
        )
        .await;
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nhi"),
            "{answer}"
        );
    })
    .await;
}

#[tokio::test]
async fn bad_requests_are_answered_not_fatal() {
    within(async {
        let options = ServerOptions {
            max_body: 4,
            ..ServerOptions::default()
        };
        let (address, _drain) = start(options).await;
        assert!(
            exchange(address, "nonsense\r\n\r\n")
                .await
                .starts_with("HTTP/1.1 400")
        );
        let long = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(100_000));
        let answer = exchange(address, &long).await;
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
            "{answer}"
        );
        let answer = exchange(
            address,
            "POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\nconnection: close\r\n\r\nlarge",
        )
        .await;
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
        let answer = exchange(
            address,
            "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        )
        .await;
        assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_sends_no_headers_is_dropped() {
    within(async {
        let (address, _drain) = start(ServerOptions::default()).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP").await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_loopback_server_refuses_foreign_names() {
    within(async {
        let (address, _drain) = start(ServerOptions::loopback()).await;
        for (host, status) in [
            ("localhost:15000", "404"),
            ("127.0.0.1:15000", "404"),
            ("[::1]:15000", "404"),
            ("evil.example", "403"),
            ("10.0.0.1", "403"),
        ] {
            let request = format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
            let answer = exchange(address, &request).await;
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status}")),
                "{host}: {answer}"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn a_loopback_server_refuses_pages_of_other_origins() {
    within(async {
        let (address, _drain) = start(ServerOptions::loopback()).await;
        for (headers, status) in [
            ("", "404"),
            ("origin: http://localhost:15000", "404"),
            ("sec-fetch-site: same-origin", "404"),
            ("sec-fetch-site: none", "404"),
            ("origin: http://evil.example", "403"),
            ("origin: https://localhost:15000", "403"),
            ("origin: http://localhost:3000", "403"),
            ("origin: null", "403"),
            ("sec-fetch-site: cross-site", "403"),
            ("sec-fetch-site: same-site", "403"),
        ] {
            let end = if headers.is_empty() { "" } else { "\r\n" };
            let request = format!(
                "POST / HTTP/1.1\r\nhost: localhost:15000\r\n{headers}{end}connection: close\r\n\r\n"
            );
            let answer = exchange(address, &request).await;
            let expected = format!("HTTP/1.1 {status}");
            assert!(answer.starts_with(&expected), "{headers}: {answer}");
        }
    })
    .await;
}

#[tokio::test]
async fn drained_server_closes_idle_connections_and_accepts_none() {
    within(async {
        let (address, drain) = start(ServerOptions::default()).await;
        let mut idle = TcpStream::connect(address).await.unwrap();
        idle.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        let mut first = [0; 12];
        idle.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"HTTP/1.1 404");
        drain.start(DrainMode::graceful(Duration::from_secs(5)));
        let mut rest = Vec::new();
        idle.read_to_end(&mut rest).await.unwrap();
        // The listener closes once its loop has noticed; until then the kernel queues openings.
        tokio::time::timeout(Duration::from_secs(20), async {
            while TcpStream::connect(address).await.is_ok() {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
    })
    .await;
}

#[tokio::test]
async fn address_in_use_is_named_in_the_error() {
    within(async {
        let taken = bind("127.0.0.1:0".parse().unwrap(), "metrics")
            .await
            .unwrap();
        let address = taken.local_addr().unwrap();
        let error = bind(address, "metrics").await.unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("cannot listen on {address} for metrics")
        );
    })
    .await;
}

#[tokio::test]
async fn address_is_bound_as_soon_as_it_is_free() {
    within(async {
        let taken = bind("127.0.0.1:0".parse().unwrap(), "metrics")
            .await
            .unwrap();
        let address = taken.local_addr().unwrap();
        let mut taking = Box::pin(bind_after_predecessor(address, "metrics"));
        let early = tokio::time::timeout(BIND_RETRY_INTERVAL * 3, taking.as_mut()).await;
        assert!(early.is_err(), "{early:?}");
        drop(taken);
        assert_eq!(taking.await.unwrap().local_addr().unwrap(), address);
    })
    .await;
}

#[tokio::test]
async fn a_unix_socket_is_served_too() {
    within(async {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("event.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let (drain, watcher) = drain::channel();
        let server = spawn("server", async move {
            // A peer without an address is on this machine.
            let options = ServerOptions::loopback();
            serve(
                "test",
                listener,
                options,
                watcher,
                |request: Request| async move { text(200, request.into_body()) },
            )
            .await;
        });
        let mut stream = tokio::net::UnixStream::connect(&path).await.unwrap();
        let request = b"POST / HTTP/1.1\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi";
        stream.write_all(request).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("\r\n\r\nhi"), "{answer}");
        drain.start(DrainMode::Immediate);
        server.await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_full_server_still_notices_the_drain() {
    within(async {
        let (drain, watcher) = drain::channel();
        let listener = bind("127.0.0.1:0".parse().unwrap(), "tests").await.unwrap();
        let address = listener.local_addr().unwrap();
        let options = ServerOptions {
            max_connections: 1,
            ..ServerOptions::default()
        };
        let server = spawn("server", async move {
            serve("test", listener, options, watcher, |_: Request| async {
                not_found()
            })
            .await;
        });
        let mut first = TcpStream::connect(address).await.unwrap();
        first
            .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        first.read_exact(&mut [0; 12]).await.unwrap();
        let _second = TcpStream::connect(address).await.unwrap();
        drain.start(DrainMode::Immediate);
        server.await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn slow_peers_of_one_address_do_not_delay_others() {
    let (address, _drain) = start(ServerOptions {
        read_timeout: Duration::from_secs(3600),
        ..ServerOptions::default()
    })
    .await;
    let mut slow = Vec::new();
    for _ in 0..300 {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.9:0".parse().unwrap()).unwrap();
        let mut stream = socket.connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP").await.unwrap();
        slow.push(stream);
    }
    let request = "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let answer = tokio::time::timeout(Duration::from_secs(20), exchange(address, request)).await;
    assert!(answer.unwrap().starts_with("HTTP/1.1 404"));
    // Of the slow ones the oldest had to go.
    assert_eq!(slow[0].read(&mut [0; 1]).await.ok(), Some(0));
}
