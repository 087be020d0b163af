//! Tests of applications with invalid or incomplete responses: they check the client's response, metrics and retries.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use ambit_testkit::wait_until;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Notify,
    time::timeout,
};

use crate::{
    application::{StrictServer, read_request_head, run_scripted_server},
    fixture::{HTTP1, HTTP2, TIMEOUT, World, log_lines_about, read_response},
};

const VIP: &str = "10.0.0.1";
const OTHER_VIP: &str = "10.0.0.2";
const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
const POST: &[u8] =
    b"POST / HTTP/1.1\r\nHost: web\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc";

fn reset_connection(stream: TcpStream) {
    stream.set_zero_linger().unwrap();
}

async fn wait_for_event(event: &Notify) {
    timeout(TIMEOUT, event.notified()).await.expect("in vain");
}

/// Runs an application that responds with these bytes and closes the connection.
async fn run_application(bytes: &'static [u8]) -> SocketAddr {
    let application = run_scripted_server(move |_, mut stream| async move {
        read_request_head(&mut stream).await;
        // The waypoint may have closed the connection.
        let _cut = stream.write_all(bytes).await;
    });
    application.await.0
}

#[rustfmt::skip]
const BROKEN_RESPONSES: &[(&str, &[u8], u16, &str, &str)] = &[
    ("nothing", b"", 503, "UC", ""),
    ("garbage", b"\x16\x03\x01garbage\r\n\r\n", 502, "UPE", ""),
    ("half a head", b"HTTP/1.1 200 OK\r\nX: ", 503, "UC", ""),
    ("a status that is none", b"HTTP/1.1 99x OK\r\n\r\n", 502, "UPE", ""),
    ("another protocol", b"SSH-2.0-server\r\n", 502, "UPE", ""),
    ("two lengths", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", 502, "UPE", ""),
    ("a signed length", b"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\nx", 502, "UPE", ""),
    ("a folded line", b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n", 502, "UPE", ""),
    ("a NUL in a value", b"HTTP/1.1 200 OK\r\nX: \0\r\nContent-Length: 0\r\n\r\n", 502, "UPE", ""),
    ("an encoding besides chunked", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 502, "UPE", ""),
    ("a connection header that takes a length away", b"HTTP/1.1 200 OK\r\nConnection: content-length\r\nContent-Length: 1\r\n\r\nx", 502, "UPE", ""),
    ("an upgrade that nobody asked for", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", 502, "UPE", ""),
    ("a shorter body than said", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", 200, "UC", "ab"),
    ("a longer body than said", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabcd", 200, "-", "ab"),
    ("a body up to the end", b"HTTP/1.1 200 OK\r\n\r\nabc", 200, "-", "abc"),
    ("a chunk that is cut", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", 200, "UC", "ab"),
    ("a chunk of no size", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nab", 200, "UC", ""),
    ("interim answers before it", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", 200, "-", "x"),
];

#[tokio::test]
async fn failed_responses_have_their_status_flag_and_log_line() {
    let world = World::new().await;
    let mut wrong = Vec::new();
    for (number, (what, bytes, status, flags, body)) in (1..).zip(BROKEN_RESPONSES) {
        let application = run_application(bytes).await;
        let vip = format!("10.0.1.{number}");
        world.serve(&format!("web{number}"), &vip, &[application]);
        let client = world.client().await;
        let before = world.request_count_with(*status, flags);
        let response = client.send_bytes(&vip, HTTP1, GET).await;
        let text = response.text();
        let (_, got) = text.split_once("\r\n\r\n").unwrap_or_default();
        let is_right = match (status, *flags) {
            // The last part of the response may be lost.
            (200, "UC") => {
                !response.ended_with_fin && body.starts_with(got.trim_end()) | got.contains(body)
            }
            (200, _) => {
                response.ended_with_fin
                    && response.statuses().last() == Some(&200)
                    && got.contains(body)
            }
            _ => response.ended_with_fin && response.statuses() == [*status],
        };
        // The request is reported when its last part is dropped.
        wait_until(&format!("{what} is counted: {text:?}"), || {
            world.request_count_with(*status, flags) == before + 1
        })
        .await;
        let lines = log_lines_about(client.address);
        let code = format!(" {status} {flags} ");
        let is_logged = |line: &String| line.contains(&code) && line.contains(&format!("{vip}:80"));
        if !is_right || !lines.iter().any(is_logged) {
            wrong.push(format!("{what}: {response:?} {lines:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn bytes_after_a_response_never_answer_another_request() {
    const TWO_RESPONSES: &[u8] =
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngoodHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
    let world = World::new().await;
    let (application, _) = run_scripted_server(|_, mut stream| async move {
        loop {
            read_request_head(&mut stream).await;
            if stream.write_all(TWO_RESPONSES).await.is_err() {
                return;
            }
        }
    })
    .await;
    world.serve("web", VIP, &[application]);
    let client = world.client().await;
    for _ in 0..50 {
        let response = client.send_bytes(VIP, HTTP1, GET).await;
        assert!(response.text().ends_with("good"), "{response:?}");
    }
}

#[tokio::test]
async fn endless_headers_and_interim_responses_are_bounded() {
    let world = World::new().await;
    let ended = Arc::new(Notify::new());
    let writer_ended = ended.clone();
    let (interim, _) = run_scripted_server(move |_, mut stream| {
        let writer_ended = writer_ended.clone();
        async move {
            read_request_head(&mut stream).await;
            while stream
                .write_all(b"HTTP/1.1 100 Continue\r\n\r\n")
                .await
                .is_ok()
            {}
            writer_ended.notify_one();
        }
    })
    .await;
    let (headers, _) = run_scripted_server(|_, mut stream| async move {
        read_request_head(&mut stream).await;
        let begun = stream.write_all(b"HTTP/1.1 200 OK\r\n").await.is_ok();
        while begun
            && stream
                .write_all(b"X: aaaaaaaaaaaaaaaaaaaaaaa\r\n")
                .await
                .is_ok()
        {}
    })
    .await;
    let strict = StrictServer::start().await;
    world.serve("interim", VIP, &[interim]);
    world.serve("headers", "10.0.0.3", &[headers]);
    world.serve("strict", OTHER_VIP, &[strict.address]);
    let client = world.client().await;
    let response = client.send_bytes("10.0.0.3", HTTP1, POST).await;
    assert_eq!(response.statuses(), [502], "{response:?}");
    assert_eq!(world.request_count_with(502, "UPE"), 1);
    let mut flooded = client.tunnel(VIP, HTTP1).await;
    flooded.write_all(GET).await.unwrap();
    for _ in 0..10 {
        assert_eq!(client.get(OTHER_VIP, HTTP1).await, 200);
    }
    drop(flooded);
    wait_for_event(&ended).await;
}

#[tokio::test]
async fn missing_response_is_awaited_until_the_client_leaves() {
    let world = World::new().await;
    let (asked, ended) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let tell = (asked.clone(), ended.clone());
    let (silent, _) = run_scripted_server(move |_, mut stream| {
        let (asked, ended) = tell.clone();
        async move {
            read_request_head(&mut stream).await;
            asked.notify_one();
            // The connection ends, in order or by a reset.
            let _end = stream.read(&mut [0; 64]).await;
            ended.notify_one();
        }
    })
    .await;
    world.serve("web", VIP, &[silent]);
    let client = world.client().await;
    let mut tunnel = client.tunnel(VIP, HTTP1).await;
    tunnel.write_all(GET).await.unwrap();
    wait_for_event(&asked).await;
    // The client half-closes the connection, and still waits.
    tunnel.shutdown().await.unwrap();
    assert_eq!(world.request_count_with(0, "DC"), 0);
    drop(tunnel);
    wait_for_event(&ended).await;
    wait_until("the request is counted", || {
        world.request_count_with(0, "DC") == 1
    })
    .await;
    let lines = log_lines_about(client.address);
    assert!(
        lines.iter().any(|line| line.contains(" 0 DC ")),
        "{lines:?}"
    );
}

#[tokio::test]
async fn early_response_is_forwarded() {
    let world = World::new().await;
    let early = run_application(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno").await;
    world.serve("web", VIP, &[early]);
    let client = world.client().await;
    let mut tunnel = client.tunnel(VIP, HTTP1).await;
    let begin = b"POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 100000000\r\n\r\nabc";
    tunnel.write_all(begin).await.unwrap();
    let mut answer = vec![0; 12];
    let reading = tunnel.read_exact(&mut answer);
    timeout(TIMEOUT, reading).await.expect("no answer").unwrap();
    assert_eq!(answer, b"HTTP/1.1 413");
    // The connection is then terminated: the rest is not read.
    let response = read_response(tunnel).await;
    assert!(response.text().ends_with("no"), "{response:?}");
}

// === what is sent again ===

/// Sends a request to a service with two endpoints. The endpoint of the first attempt fails. Returns the number of
/// attempts, and the statuses that the client received.
async fn send_with_failing_endpoint(
    request: &[u8],
    fail: impl Fn(TcpStream) + Send + Sync + Copy + 'static,
) -> (usize, Vec<u16>) {
    let world = World::new().await;
    let before = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let mut endpoints = Vec::new();
    for _ in 0..2 {
        let before = before.clone();
        let endpoint = run_scripted_server(move |_, mut stream| {
            let before = before.clone();
            async move {
                read_request_head(&mut stream).await;
                if before.fetch_add(1, Relaxed) == 0 {
                    return fail(stream);
                }
                let ok = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
                let _cut = stream.write_all(ok).await;
            }
        });
        endpoints.push(endpoint.await.0);
    }
    world.serve("web", VIP, &endpoints);
    let response = world.client().await.send_bytes(VIP, HTTP1, request).await;
    (before.load(Relaxed), response.statuses())
}

const POST_WITHOUT_BODY: &[u8] =
    b"POST / HTTP/1.1\r\nHost: web\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

/// Sends a request over HTTP/2 to a service with two endpoints. The endpoint of the first attempt resets the stream for
/// this reason; without a reason, it closes the connection. Returns the number of attempts, and the client's statuses.
async fn send_with_failing_http2(request: &[u8], reason: Option<h2::Reason>) -> (usize, Vec<u16>) {
    let world = World::new().await;
    let before = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let mut endpoints = Vec::new();
    for _ in 0..2 {
        let before = before.clone();
        let endpoint = run_scripted_server(move |_, stream| {
            let before = before.clone();
            async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    match (before.fetch_add(1, Relaxed), reason) {
                        (0, Some(reason)) => respond.send_reset(reason),
                        // GOAWAY reports the request as the last processed one.
                        (0, None) => connection.abrupt_shutdown(h2::Reason::NO_ERROR),
                        _ => {
                            let ok = http::Response::new(());
                            let _gone = respond
                                .send_response(ok, true)
                                .map(drop::<h2::SendStream<bytes::Bytes>>);
                        }
                    }
                }
            }
        });
        endpoints.push(endpoint.await.0);
    }
    world.serve("web", VIP, &endpoints);
    let response = world.client().await.send_bytes(VIP, HTTP2, request).await;
    (before.load(Relaxed), response.statuses())
}

#[tokio::test]
async fn only_unprocessed_http2_streams_are_retried() {
    let refused = Some(h2::Reason::REFUSED_STREAM);
    let failed = Some(h2::Reason::INTERNAL_ERROR);
    for (what, request, reason, expected) in [
        ("refused", POST_WITHOUT_BODY, refused, (2, vec![200])),
        ("refused with a body", POST, refused, (1, vec![503])),
        ("failed", POST_WITHOUT_BODY, failed, (1, vec![503])),
        ("failed, harmless", GET, failed, (2, vec![200])),
        ("closed after it", POST_WITHOUT_BODY, None, (1, vec![503])),
    ] {
        assert_eq!(
            send_with_failing_http2(request, reason).await,
            expected,
            "{what}"
        );
    }
}

#[tokio::test]
async fn possibly_processed_requests_are_not_retried() {
    const PUT: &[u8] =
        b"PUT / HTTP/1.1\r\nHost: web\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc";
    for (request, expected) in [
        (GET, (2, vec![200])),
        (POST, (1, vec![503])),
        (POST_WITHOUT_BODY, (1, vec![503])),
        (PUT, (1, vec![503])),
    ] {
        let what = String::from_utf8_lossy(request);
        assert_eq!(
            send_with_failing_endpoint(request, reset_connection).await,
            expected,
            "{what}"
        );
        assert_eq!(
            send_with_failing_endpoint(request, drop).await,
            expected,
            "{what}"
        );
    }
}

#[tokio::test]
async fn requests_have_at_most_three_attempts() {
    let world = World::new().await;
    let mut counts = Vec::new();
    let mut endpoints = Vec::new();
    for _ in 0..5 {
        let (endpoint, count) = run_scripted_server(|_, mut stream| async move {
            read_request_head(&mut stream).await;
            reset_connection(stream);
        })
        .await;
        endpoints.push(endpoint);
        counts.push(count);
    }
    world.serve("web", VIP, &endpoints);
    let response = world.client().await.send_bytes(VIP, HTTP1, GET).await;
    assert_eq!(response.statuses(), [503], "{response:?}");
    let asked: usize = counts.iter().map(|count| count.load(Relaxed)).sum();
    assert_eq!(asked, 3);
    assert_eq!(
        world.request_count_with(503, "URX,UC"),
        1,
        "{}",
        world.metrics()
    );
}

#[tokio::test]
async fn refused_connections_are_retried_elsewhere() {
    let world = World::new().await;
    let strict = StrictServer::start().await;
    // Nothing listens at the second address, on the same port.
    let nobody = SocketAddr::from(([127, 0, 8, 1], strict.address.port()));
    world.serve("web", VIP, &[strict.address, nobody]);
    world.serve("nobody", OTHER_VIP, &[nobody]);
    let client = world.client().await;
    for _ in 0..20 {
        let response = client.send_bytes(VIP, HTTP1, POST).await;
        assert_eq!(response.statuses(), [200], "{response:?}");
    }
    let response = client.send_bytes(OTHER_VIP, HTTP1, POST).await;
    assert_eq!(response.statuses(), [503], "{response:?}");
    assert_eq!(
        world.request_count_with(503, "UF"),
        1,
        "{}",
        world.metrics()
    );
}
