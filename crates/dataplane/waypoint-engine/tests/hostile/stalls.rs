//! Tests of clients and applications that do not read, while other clients use the same waypoint.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::AtomicUsize, atomic::Ordering::Relaxed},
};

use ambit_hbone::TunnelIo;
use ambit_testkit::wait_until;
use bytes::Bytes;
use h2::{RecvStream, SendStream, client::SendRequest, server::SendResponse};
use http::{Request, Response};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::Notify,
    time::timeout,
};

use crate::{
    application::{read_request_head, run_scripted_server},
    fixture::{Client, HTTP1, HTTP2, TIMEOUT, World, read_response},
};

const VIP: &str = "10.0.0.1";
/// Size of a response in bytes that exceeds all windows between a client and an HTTP/2 application.
const BIG_RESPONSE_BYTES: usize = 64 << 20;
/// Number of bytes that clients which do read send and receive.
const SMALL_BODY_BYTES: usize = 200 << 10;

/// Runs an HTTP/2 application with the initial windows of RFC 9113. The response of `/big` is endless, the request of
/// `/sink` is never read, and other requests are echoed with 200 KiB more bytes. Returns its address and the
/// counter of active requests.
async fn run_application() -> (SocketAddr, Arc<AtomicUsize>) {
    let active = Arc::new(AtomicUsize::new(0));
    let counted = active.clone();
    let (address, _) = run_scripted_server(move |_, stream| {
        let counted = counted.clone();
        async move {
            let Ok(mut connection) = h2::server::handshake(stream).await else {
                return;
            };
            while let Some(Ok((request, respond))) = connection.accept().await {
                let counted = counted.clone();
                ambit_rt::spawn("request", async move {
                    counted.fetch_add(1, Relaxed);
                    respond_to(request, respond).await;
                    counted.fetch_sub(1, Relaxed);
                });
            }
        }
    })
    .await;
    (address, active)
}

async fn respond_to(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let path = request.uri().path().to_owned();
    let mut body = request.into_body();
    let send = |respond: &mut SendResponse<Bytes>| respond.send_response(Response::new(()), false);
    match path.as_str() {
        "/sink" => {
            let _reset = std::future::poll_fn(|cx| respond.poll_reset(cx)).await;
        }
        "/big" => {
            if let Ok(mut stream) = send(&mut respond) {
                let _cut = send_bytes(&mut stream, BIG_RESPONSE_BYTES).await;
            }
        }
        _ => {
            let mut bytes = 0;
            while let Some(Ok(data)) = body.data().await {
                bytes += data.len();
                let _credited = body.flow_control().release_capacity(data.len());
            }
            if let Ok(mut stream) = send(&mut respond) {
                let _cut = send_bytes(&mut stream, bytes + SMALL_BODY_BYTES).await;
            }
        }
    }
}

/// Sends `count` bytes as the windows allow, and then END_STREAM.
async fn send_bytes(stream: &mut SendStream<Bytes>, count: usize) -> Result<(), h2::Error> {
    let mut left = count;
    while left > 0 {
        stream.reserve_capacity(left.min(64 << 10));
        let capacity = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
        let n = capacity
            .unwrap_or(Err(h2::Reason::CANCEL.into()))?
            .min(left);
        stream.send_data(Bytes::from(vec![b'a'; n]), false)?;
        left -= n;
    }
    stream.send_data(Bytes::new(), true)
}

/// Opens an HTTP/2 connection of a client to the service, with this initial window. It is closed when the returned task
/// is dropped.
async fn connect(client: &Client, window: u32) -> (SendRequest<Bytes>, impl Sized) {
    let tunnel: TunnelIo = client.tunnel(VIP, HTTP2).await;
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(window);
    let (send, connection) = builder.handshake(tunnel).await.unwrap();
    let driver = ambit_rt::spawn_abortable("client's connection", async move {
        let _ended = connection.await;
    });
    (send, driver)
}

/// Opens an HTTP/2 stream for a request to a path.
async fn open(
    connection: &SendRequest<Bytes>,
    path: &str,
) -> (h2::client::ResponseFuture, SendStream<Bytes>) {
    let mut connection = connection.clone().ready().await.unwrap();
    let request = Request::post(format!("http://web{path}")).body(()).unwrap();
    connection.send_request(request, false).unwrap()
}

/// Checks that another client's request with a body succeeds.
async fn check_other_client(client: &Client, what: &str) {
    let exchange = async {
        let (connection, _driver) = connect(client, 65_535).await;
        let (response, mut body) = open(&connection, "/").await;
        send_bytes(&mut body, SMALL_BODY_BYTES).await.unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        let mut body = response.into_body();
        let mut bytes = 0;
        while let Some(data) = body.data().await {
            let data = data.unwrap();
            bytes += data.len();
            body.flow_control().release_capacity(data.len()).unwrap();
        }
        assert_eq!(bytes, SMALL_BODY_BYTES * 2);
    };
    let served = timeout(TIMEOUT, exchange).await;
    assert!(served.is_ok(), "held up by {what}");
}

#[tokio::test]
async fn unread_responses_do_not_delay_others() {
    let world = World::new().await;
    let (address, active) = run_application().await;
    world.serve("web", VIP, &[address]);
    let (attacker, other) = (world.client_as("attacker").await, world.client().await);
    check_other_client(&other, "nothing").await;
    // A window of 0, or any that the client chooses; on several connections, also of the same caller.
    let (mut held, mut drivers) = (Vec::new(), Vec::new());
    for (client, window) in [
        (&attacker, 0),
        (&attacker, 0),
        (&other, 0),
        (&other, 16_384),
    ] {
        let (connection, driver) = connect(client, window).await;
        for _ in 0..20 {
            let (response, mut body) = open(&connection, "/big").await;
            body.send_data(Bytes::new(), true).unwrap();
            held.push(response.await.unwrap());
        }
        drivers.push(driver);
        check_other_client(&other, "unread responses").await;
    }
    drop((held, drivers));
    wait_until("the application is done with them", || {
        active.load(Relaxed) == 0
    })
    .await;
}

#[tokio::test]
async fn unread_uploads_do_not_delay_others() {
    let world = World::new().await;
    let (address, active) = run_application().await;
    world.serve("web", VIP, &[address]);
    let (attacker, other) = (world.client_as("attacker").await, world.client().await);
    let (connection, driver) = connect(&attacker, 65_535).await;
    let mut held = Vec::new();
    for _ in 0..20 {
        let (response, mut body) = open(&connection, "/sink").await;
        let sending = ambit_rt::spawn_abortable("upload", async move {
            // Until the windows are full.
            let _cut = send_bytes(&mut body, BIG_RESPONSE_BYTES).await;
        });
        held.push((response, sending));
    }
    wait_until("the application has them all", || {
        active.load(Relaxed) == 20
    })
    .await;
    for _ in 0..5 {
        check_other_client(&other, "unread uploads").await;
    }
    drop((driver, held, connection));
    wait_until("the application is done with them", || {
        active.load(Relaxed) == 0
    })
    .await;
}

/// Creates a waypoint with a stall timeout of one second, and a service whose application counts requests that have
/// ended.
async fn world_with_stall_timeout(response: &'static [u8]) -> (World, Arc<AtomicUsize>) {
    let world = World::with_env(&[("AMBIT_STREAM_STALL_TIMEOUT", "1s")]).await;
    let ended = Arc::new(AtomicUsize::new(0));
    let tell = ended.clone();
    let (address, _) = run_scripted_server(move |_, mut stream| {
        let tell = tell.clone();
        async move {
            read_request_head(&mut stream).await;
            if response.is_empty() {
                let _reset = stream.ready(tokio::io::Interest::ERROR).await;
            } else {
                let piece = vec![b'a'; 64 << 10];
                let mut has_sent = stream.write_all(response).await.is_ok();
                while has_sent {
                    has_sent = stream.write_all(&piece).await.is_ok();
                }
            }
            tell.fetch_add(1, Relaxed);
        }
    })
    .await;
    world.serve("web", VIP, &[address]);
    (world, ended)
}

#[tokio::test]
async fn unread_response_is_terminated() {
    const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: web\r\n\r\n";
    let (world, ended) = world_with_stall_timeout(b"HTTP/1.1 200 OK\r\n\r\n").await;
    let client = world.client().await;
    let mut tunnel = client.tunnel(VIP, HTTP1).await;
    tunnel.write_all(GET).await.unwrap();
    wait_until("the application is rid of it", || ended.load(Relaxed) == 1).await;
    // A late reader receives the bytes in flight, and no end.
    assert!(!read_response(tunnel).await.ended_with_fin);
}

#[tokio::test]
async fn unread_upload_is_terminated() {
    const POST: &[u8] = b"POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 100000000\r\n\r\n";
    let (world, ended) = world_with_stall_timeout(b"").await;
    let client = world.client().await;
    let tunnel = client.tunnel(VIP, HTTP1).await;
    let (mut read, mut write) = tokio::io::split(tunnel);
    write.write_all(POST).await.unwrap();
    ambit_rt::spawn("upload", async move {
        let piece = vec![b'a'; 64 << 10];
        while write.write_all(&piece).await.is_ok() {}
    });
    let mut answer = [0; 12];
    let reading = timeout(TIMEOUT, read.read_exact(&mut answer)).await;
    reading.expect("no answer").unwrap();
    assert_eq!(&answer, b"HTTP/1.1 504");
    wait_until("the application is rid of it", || ended.load(Relaxed) == 1).await;
}

#[tokio::test]
async fn idle_stream_never_stalls() {
    const OTHER: &str = "10.0.0.2";
    let (world, given_up) = world_with_stall_timeout(b"HTTP/1.1 200 OK\r\n\r\n").await;
    let resume = Arc::new(Notify::new());
    let resumed = resume.clone();
    let (address, _) = run_scripted_server(move |_, mut stream| {
        let resumed = resumed.clone();
        async move {
            read_request_head(&mut stream).await;
            let begun = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n";
            stream.write_all(begun).await.unwrap();
            resumed.notified().await;
            stream.write_all(b"1\r\nb\r\n0\r\n\r\n").await.unwrap();
        }
    })
    .await;
    world.serve("quiet", OTHER, &[address]);
    let client = world.client().await;
    let mut quiet = client.tunnel(OTHER, HTTP1).await;
    let get = b"GET / HTTP/1.1\r\nHost: quiet\r\nConnection: close\r\n\r\n";
    quiet.write_all(get).await.unwrap();
    let mut begun = Vec::new();
    while !begun.ends_with(b"1\r\na\r\n") {
        begun.push(quiet.read_u8().await.unwrap());
    }
    // Other streams stall meanwhile, one after the other: the stream is idle for longer than the stall timeout.
    for count in 1..=3 {
        let mut unread = client.tunnel(VIP, HTTP1).await;
        let get = b"GET / HTTP/1.1\r\nHost: web\r\n\r\n";
        unread.write_all(get).await.unwrap();
        wait_until("one that stalls is given up", || {
            given_up.load(Relaxed) == count
        })
        .await;
    }
    resume.notify_one();
    let rest = read_response(quiet).await;
    assert!(
        rest.ended_with_fin && rest.text().contains("b\r\n"),
        "{rest:?}"
    );
}
