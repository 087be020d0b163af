//! Tests of uploads and responses that stop in the middle, over HTTP/1 and HTTP/2, and of streams that are idle
//! legitimately.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use ambit_hbone::TunnelIo;
use ambit_testkit::wait_until;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::Notify,
    time::timeout,
};

use crate::{
    application::{read_request_head, run_scripted_server},
    fixture::{HTTP1, TIMEOUT, World, read_response},
    http2::{DATA, END_HEADERS, HEADERS, PREFACE, SETTINGS, frame},
};

const VIP: &str = "10.0.0.1";
const QUIET_VIP: &str = "10.0.0.2";

/// Creates a waypoint with applications that do not respond before a request has ended. Returns the waypoint, and a
/// counter of requests that ended early.
async fn scene() -> (World, Arc<AtomicUsize>) {
    let world = World::with_env(&[("AMBIT_STREAM_IDLE_TIMEOUT", "1s")]).await;
    let ended = Arc::new(AtomicUsize::new(0));
    let tell = ended.clone();
    let (address, _) = run_scripted_server(move |_, mut stream| {
        let tell = tell.clone();
        async move {
            while let Ok(1..) = stream.read(&mut [0; 1024]).await {}
            tell.fetch_add(1, Relaxed);
        }
    })
    .await;
    world.serve("web", VIP, &[address]);
    (world, ended)
}

async fn read_status_line(tunnel: &mut TunnelIo) -> String {
    let mut line = [0; 12];
    let reading = timeout(TIMEOUT, tunnel.read_exact(&mut line)).await;
    reading.expect("no answer").unwrap();
    String::from_utf8_lossy(&line).into_owned()
}

#[tokio::test]
async fn stopped_http1_upload_gets_408() {
    let (world, ended) = scene().await;
    let client = world.client().await;
    for framing in ["Content-Length: 100", "Transfer-Encoding: chunked"] {
        let before = ended.load(Relaxed);
        let mut tunnel = client.tunnel(VIP, HTTP1).await;
        let post = format!("POST / HTTP/1.1\r\nHost: web\r\n{framing}\r\n\r\n5\r\nabcde\r\n");
        tunnel.write_all(post.as_bytes()).await.unwrap();
        assert_eq!(
            read_status_line(&mut tunnel).await,
            "HTTP/1.1 408",
            "{framing}"
        );
        wait_until("the application is rid of it", || {
            ended.load(Relaxed) > before
        })
        .await;
    }
    assert_eq!(world.request_count_with(408, "SI"), 2);
}

#[tokio::test]
async fn stopped_http2_upload_gets_408() {
    let (world, ended) = scene().await;
    let client = world.client().await;
    let mut tunnel = client.tunnel(VIP, HTTP1).await;
    let post = frame(HEADERS, END_HEADERS, 1, b"\x83\x86\x84\x01\x03web");
    let bytes = [
        PREFACE,
        &frame(SETTINGS, 0, 0, b""),
        &post,
        &frame(DATA, 0, 1, b"abcde"),
    ];
    tunnel.write_all(&bytes.concat()).await.unwrap();
    wait_until("it is answered", || {
        world.request_count_with(408, "SI") == 1
    })
    .await;
    wait_until("the application is rid of it", || ended.load(Relaxed) == 1).await;
}

/// Requests an application that pauses its response until several uploads have timed out. Returns the rest of the
/// response, and whether the stream ended with FIN.
async fn resume_paused_response(
    world: &World,
    given_up: &AtomicUsize,
    response: &'static str,
) -> (String, bool) {
    let resume = Arc::new(Notify::new());
    let resumed = resume.clone();
    let (address, _) = run_scripted_server(move |_, mut stream| {
        let resumed = resumed.clone();
        async move {
            read_request_head(&mut stream).await;
            stream.write_all(response.as_bytes()).await.unwrap();
            resumed.notified().await;
            let _gone = stream.write_all(b"3\r\nend\r\n0\r\n\r\n").await;
        }
    })
    .await;
    world.serve("quiet", QUIET_VIP, &[address]);
    let client = world.client().await;
    let mut quiet = client.tunnel(QUIET_VIP, HTTP1).await;
    let get = b"GET / HTTP/1.1\r\nHost: quiet\r\nConnection: close\r\n\r\n";
    quiet.write_all(get).await.unwrap();
    if !response.is_empty() {
        assert_eq!(read_status_line(&mut quiet).await, "HTTP/1.1 200");
    }
    // Uploads that stop one after the other: the response is idle for longer than an upload may be.
    for _ in 0..3 {
        let before = given_up.load(Relaxed);
        let mut upload = client.tunnel(VIP, HTTP1).await;
        let post = b"POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 100\r\n\r\nabc";
        upload.write_all(post).await.unwrap();
        wait_until("an upload is given up", || given_up.load(Relaxed) > before).await;
    }
    resume.notify_one();
    let rest = read_response(quiet).await;
    (rest.text(), rest.ended_with_fin)
}

#[tokio::test]
async fn stopped_response_times_out_only_with_a_declared_length() {
    let (world, given_up) = scene().await;
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n";
    let (text, ended) = resume_paused_response(&world, &given_up, chunked).await;
    assert!(ended && text.contains("end"), "{text}");
    let declared = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\na";
    let (text, ended) = resume_paused_response(&world, &given_up, declared).await;
    assert!(!ended && !text.contains("end"), "{text}");
}

#[tokio::test]
async fn waiting_for_a_response_has_no_idle_timeout() {
    let (world, given_up) = scene().await;
    let (text, _) = resume_paused_response(&world, &given_up, "").await;
    // The final bytes of the application are not an HTTP response.
    assert!(text.starts_with("HTTP/1.1 50"), "{text}");
}
