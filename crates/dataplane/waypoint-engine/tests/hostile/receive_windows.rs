//! Tests of peers whose data the waypoint does not read: they can send no more bytes than are charged to the caller.

use std::{
    future::poll_fn,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use ambit_hbone::{Settings, TunnelIo};
use ambit_rt::AbortOnDrop;
use ambit_testkit::wait_until;
use bytes::Bytes;
use http::{Request, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    application::{read_request_head, run_scripted_server, run_tunnel_server},
    fixture::{HTTP1, HTTP2, TCP, TIMEOUT, World},
};

const VIP: &str = "10.0.0.1";
/// Memory limit of the waypoint, of which the connections of one caller may use a sixteenth.
const MEMORY_LIMIT: (&str, &str) = ("AMBIT_MEMORY_LIMIT", "268435456");
/// Tolerated number of bytes beyond the charged windows: kernel buffers and the first reads of a connection.
const SLACK_BYTES: usize = 1 << 20;

/// Waits until a counter no longer grows, and returns it.
async fn wait_until_settled(number: &AtomicUsize) -> usize {
    let mut every = tokio::time::interval(Duration::from_millis(500));
    every.tick().await;
    let mut last = 0;
    loop {
        every.tick().await;
        let now = number.load(Relaxed);
        if now == last && now > 0 {
            return now;
        }
        last = now;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_tunnels_stay_within_their_charge() {
    let world = World::with_env(&[MEMORY_LIMIT]).await;
    let (hangs, _) = run_scripted_server(|_, mut stream| async move {
        let _read = stream.read(&mut [0; 1024]).await;
        std::future::pending::<()>().await;
    })
    .await;
    world.serve("hangs", VIP, &[hangs]);
    let client = Arc::new(world.client().await);
    let (before, _) = world.memory_budget();
    let sent = Arc::new(AtomicUsize::new(0));
    let flows: Vec<AbortOnDrop<()>> = (0..200)
        .map(|_| {
            let (client, sent) = (client.clone(), sent.clone());
            ambit_rt::spawn_abortable("flow", async move {
                let Ok(mut tunnel) = client.try_tunnel(VIP, HTTP1).await else {
                    return;
                };
                // Bytes after a request wait for its response.
                let request = b"GET / HTTP/1.1\r\nHost: web\r\n\r\n";
                tunnel.write_all(request).await.unwrap();
                while let Ok(count) = tunnel.write(&[b'd'; 16 << 10]).await {
                    sent.fetch_add(count, Relaxed);
                }
            })
        })
        .collect();
    let sent = wait_until_settled(&sent).await;
    let charged = world.memory_budget().0.saturating_sub(before);
    assert!(
        sent <= charged + SLACK_BYTES,
        "{sent} sent, {charged} charged"
    );
    drop(flows);
}

/// Runs an HTTP/2 application with endless responses. Returns its address, and a counter of the bytes that the
/// waypoint's windows allowed it to send.
async fn run_endless_application() -> (SocketAddr, Arc<AtomicUsize>) {
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = sent.clone();
    let (address, _) = run_scripted_server(move |_, stream| {
        let counted = counted.clone();
        async move {
            let Ok(mut connection) = h2::server::handshake(stream).await else {
                return;
            };
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                let counted = counted.clone();
                ambit_rt::spawn("response", async move {
                    let mut body = respond.send_response(Response::new(()), false).unwrap();
                    loop {
                        body.reserve_capacity(16 << 10);
                        let Some(Ok(capacity)) = poll_fn(|cx| body.poll_capacity(cx)).await else {
                            return;
                        };
                        if body.send_data(vec![b'd'; capacity].into(), false).is_err() {
                            return;
                        }
                        counted.fetch_add(capacity, Relaxed);
                    }
                });
            }
        }
    })
    .await;
    (address, sent)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_http2_responses_stay_within_their_charge() {
    let world = World::with_env(&[MEMORY_LIMIT]).await;
    let (address, sent) = run_endless_application().await;
    world.serve("web", VIP, &[address]);
    let client = world.client().await;
    let (before, _) = world.memory_budget();
    let tunnel = client.tunnel(VIP, HTTP2).await;
    let (requests, connection) = h2::client::handshake(tunnel).await.unwrap();
    ambit_rt::spawn("client", async move {
        // The connection ends with the test.
        let _ended: Result<(), h2::Error> = connection.await;
    });
    let mut requests: h2::client::SendRequest<Bytes> = requests.ready().await.unwrap();
    let mut responses = Vec::new();
    for _ in 0..80 {
        let request = Request::get("http://web/").body(()).unwrap();
        responses.push(requests.send_request(request, true).unwrap());
        requests = requests.ready().await.unwrap();
    }
    let sent = wait_until_settled(&sent).await;
    let charged = world.memory_budget().0.saturating_sub(before);
    assert!(
        sent <= charged + SLACK_BYTES,
        "{sent} sent, {charged} charged"
    );
    drop(responses);
}

const TUNNELS: usize = 60;

/// Runs an HBONE server at port 15008 of an address, until the guard is dropped. It sends as much in each tunnel as the
/// windows allow, and counts the bytes.
pub(crate) async fn run_flooding_server(
    world: &World,
    name: &str,
    ip: &str,
) -> (Arc<AtomicUsize>, AbortOnDrop<()>) {
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = sent.clone();
    let script = move |mut tunnel: TunnelIo, _| {
        let counted = counted.clone();
        async move {
            while let Ok(count) = tunnel.write(&[b'd'; 16 << 10]).await {
                counted.fetch_add(count, Relaxed);
            }
        }
    };
    (sent, run_tunnel_server(world, name, ip, script).await)
}

/// Creates a waypoint whose only endpoint is a flooding server; see [`run_flooding_server`].
async fn world_with_flooding_endpoint() -> (World, Arc<AtomicUsize>, AbortOnDrop<()>) {
    let world = World::with_env(&[MEMORY_LIMIT]).await;
    let ip = "127.0.9.1";
    let (sent, endpoint) = run_flooding_server(&world, "flood", ip).await;
    world.serve_by_tunnel("flood", VIP, ip);
    (world, sent, endpoint)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_endpoints_behind_tunnels_are_charged() {
    let (world, sent, _endpoint) = world_with_flooding_endpoint().await;
    let window = 16 << 10;
    let settings = Settings {
        stream_window: window,
        connection_window: window,
        min_stream_window: window,
        ..Settings::default()
    };
    let client = world.client_with_settings(&settings).await;
    let (before, _) = world.memory_budget();
    let mut tunnels = Vec::new();
    for _ in 0..TUNNELS {
        tunnels.push(client.try_tunnel(VIP, TCP).await.unwrap());
    }
    let sent = wait_until_settled(&sent).await;
    // Some bytes are in the client's own windows rather than the waypoint's.
    let taken = TUNNELS * usize::try_from(window).unwrap();
    let charged = world.memory_budget().0.saturating_sub(before);
    let most = charged + taken + SLACK_BYTES;
    assert!(sent <= most, "{sent} sent, {charged} charged");
    drop(tunnels);
}

/// Bytes of a download by which an endpoint's windows grow as far as they may.
const DOWNLOAD_BYTES: usize = 64 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_that_downloads_enlarge_stay_within_their_charge() {
    let (world, sent, _endpoint) = world_with_flooding_endpoint().await;
    let client = world.client().await;
    let (before, limit) = world.memory_budget();
    let mut read = client.try_tunnel(VIP, TCP).await.unwrap();
    let mut buffer = vec![0; 64 << 10];
    let mut downloaded = 0;
    while downloaded < DOWNLOAD_BYTES {
        downloaded += read.read(&mut buffer).await.unwrap();
    }
    let (charged, _) = world.memory_budget();
    assert!(
        (before + (2 << 20)..limit / 8).contains(&charged),
        "{charged} of {limit} charged, {before} before the download"
    );
    // Unread bytes are in these windows, in the client's, and in kernel buffers.
    let sent = wait_until_settled(&sent).await - downloaded;
    let client_window = usize::try_from(Settings::default().stream_window).unwrap();
    let most = charged + client_window + SLACK_BYTES;
    assert!(sent <= most, "{sent} sent, {charged} charged");
    drop(read);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgraded_connections_are_charged_until_they_close() {
    let world = World::with_env(&[MEMORY_LIMIT]).await;
    let (address, _) = run_scripted_server(|_, mut stream| async move {
        read_request_head(&mut stream).await;
        let answer = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
        stream.write_all(answer).await.unwrap();
        let _ended = stream.read(&mut [0; 1024]).await;
    })
    .await;
    world.serve("web", VIP, &[address]);
    let client = world.client().await;
    let mut tunnel = client.tunnel(VIP, HTTP1).await;
    wait_until("the tunnel is served", || world.memory_budget().0 > 0).await;
    let (idle, _) = world.memory_budget();
    let request = b"GET / HTTP/1.1\r\nHost: web\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    tunnel.write_all(request).await.unwrap();
    let mut read = [0; 12];
    tunnel.read_exact(&mut read).await.unwrap();
    assert_eq!(&read, b"HTTP/1.1 101");
    // The HTTP/1 server has ended, and released its charge for the tunnel.
    let charged = idle + (24 << 10)..=idle + (32 << 10);
    wait_until("the tunnel and both copy buffers are charged", || {
        charged.contains(&world.memory_budget().0)
    })
    .await;
    tunnel.shutdown().await.unwrap();
    wait_until("they are given back", || world.memory_budget().0 <= idle).await;
}
/// Connection window of applications in bytes, with which h2 accepts bursts of small frames.
const LARGE_WINDOW: u32 = 64 << 20;
/// Number of DATA frames with one gRPC message of five bytes each: as many as a stream's window holds.
const SMALL_MESSAGES: usize = 12_000;

/// Runs an HTTP/2 application that reads each request to its end, and responds with as many small messages.
async fn run_message_application() -> SocketAddr {
    let (address, _) = run_scripted_server(|_, stream| async move {
        let mut builder = h2::server::Builder::new();
        builder.initial_connection_window_size(LARGE_WINDOW);
        let mut connection = builder.handshake(stream).await.unwrap();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            ambit_rt::spawn("response", async move {
                let mut body = request.into_body();
                let mut got = 0;
                while let Some(Ok(data)) = body.data().await {
                    got += data.len();
                    let _credited = body.flow_control().release_capacity(data.len());
                }
                let mut send = respond.send_response(Response::new(()), false).unwrap();
                for _ in 0..got / 5 {
                    send_message(&mut send).await;
                }
                send.send_data(Bytes::new(), true).unwrap();
            });
        }
    })
    .await;
    address
}

async fn send_message(send: &mut h2::SendStream<Bytes>) {
    send.reserve_capacity(5);
    while send.capacity() < 5 {
        poll_fn(|cx| send.poll_capacity(cx)).await.unwrap().unwrap();
    }
    send.send_data(Bytes::from_static(&[0; 5]), false).unwrap();
}

// One thread, as a worker has: the tasks that take frames run before the connection reads on.
#[tokio::test]
async fn streams_of_small_messages_pass() {
    let world = World::new().await;
    let address = run_message_application().await;
    world.serve("web", VIP, &[address]);
    let client = world.client().await;
    let tunnel = client.tunnel(VIP, HTTP2).await;
    let mut builder = h2::client::Builder::new();
    builder.initial_connection_window_size(LARGE_WINDOW);
    let (requests, connection) = builder.handshake(tunnel).await.unwrap();
    ambit_rt::spawn("client", async move {
        // The connection ends with the test.
        let _ended: Result<(), h2::Error> = connection.await;
    });
    let mut requests: h2::client::SendRequest<Bytes> = requests.ready().await.unwrap();
    let request = Request::post("http://web/").body(()).unwrap();
    let (response, mut send) = requests.send_request(request, false).unwrap();
    for _ in 0..SMALL_MESSAGES {
        send_message(&mut send).await;
    }
    send.send_data(Bytes::new(), true).unwrap();
    let mut body = tokio::time::timeout(TIMEOUT, response)
        .await
        .expect("no response")
        .unwrap()
        .into_body();
    let mut got = 0;
    while let Some(data) = tokio::time::timeout(TIMEOUT, body.data())
        .await
        .expect("silence")
    {
        let data = data.unwrap();
        got += data.len();
        let _credited = body.flow_control().release_capacity(data.len());
    }
    assert_eq!(got, 5 * SMALL_MESSAGES);
}
