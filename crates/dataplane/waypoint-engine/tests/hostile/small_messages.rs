//! Tests of streams with many small messages whose receiver is slow: flow control holds them, and neither the streams nor
//! others of their connections end.

use std::{future::poll_fn, net::SocketAddr};

use bytes::Bytes;
use h2::{RecvStream, SendStream, server::SendResponse};
use http::{Request, Response};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::{
    application::run_scripted_server,
    fixture::{HTTP2, TIMEOUT, World},
    http2::{DATA, END_HEADERS, END_STREAM, HEADERS, PING, POST, PREFACE, SETTINGS, frame},
};

const VIP: &str = "10.0.0.1";
/// Memory limit of the waypoint, with which HTTP/2 permits some 550 unread messages on a client's connection.
const MEMORY_LIMIT: (&str, &str) = ("AMBIT_MEMORY_LIMIT", "268435456");
const MESSAGE: &[u8] = &[b'm'; 20];
/// Messages of an upload, which fill the window of its stream.
const UPLOADED_MESSAGES: usize = 3_200;
/// Downloads of one client. Their messages are more than HTTP/2 permits on a connection to an endpoint.
const DOWNLOADS: usize = 6;
/// Messages of a download, which fill the windows of both hops.
const DOWNLOADED_MESSAGES: usize = 6_500;
/// Budget for small DATA frames of the client and the endpoint, whose limit is not what is tested.
const PEER_FRAME_BUDGET: usize = 1 << 30;
const ACK: u8 = 1;

/// Sends the messages of a download as one frame each, as soon as windows permit.
async fn send_messages(mut body: SendStream<Bytes>) -> Result<(), h2::Error> {
    for _ in 0..DOWNLOADED_MESSAGES {
        body.reserve_capacity(MESSAGE.len());
        while body.capacity() < MESSAGE.len() {
            let capacity = poll_fn(|cx| body.poll_capacity(cx)).await;
            capacity.ok_or(h2::Reason::STREAM_CLOSED)??;
        }
        body.send_data(Bytes::from_static(MESSAGE), false)?;
    }
    body.send_data(Bytes::new(), true)
}

/// Reads a body and returns its number of bytes.
async fn read_body(mut body: RecvStream) -> Result<usize, h2::Error> {
    let mut bytes = 0;
    while let Some(piece) = body.data().await {
        let length = piece?.len();
        bytes += length;
        body.flow_control().release_capacity(length)?;
    }
    Ok(bytes)
}

/// Runs an HTTP/2 application with a small window, and passes the requests to a channel.
async fn run_application() -> (
    SocketAddr,
    mpsc::UnboundedReceiver<(RecvStream, SendResponse<Bytes>)>,
) {
    let (accepted, requests) = mpsc::unbounded_channel();
    let (address, _) = run_scripted_server(move |_, stream| {
        let accepted = accepted.clone();
        async move {
            let mut builder = h2::server::Builder::new();
            builder
                .data_frame_budget(PEER_FRAME_BUDGET)
                .initial_window_size(1000);
            let mut connection = builder.handshake(stream).await.unwrap();
            while let Some(Ok((request, respond))) = connection.accept().await {
                accepted.send((request.into_body(), respond)).unwrap();
            }
        }
    })
    .await;
    (address, requests)
}

#[tokio::test]
async fn small_messages_wait_for_a_slow_endpoint() {
    let world = World::with_env(&[MEMORY_LIMIT]).await;
    let (application, mut requests) = run_application().await;
    world.serve("slow", VIP, &[application]);
    let client = world.client().await;
    let mut tunnel = client.tunnel(VIP, HTTP2).await;
    // Node proxies pass many of the messages that an application sends quickly at once.
    let burst = [
        PREFACE,
        &frame(SETTINGS, 0, 0, b""),
        &frame(HEADERS, END_HEADERS, 1, POST),
        &frame(DATA, 0, 1, MESSAGE).repeat(UPLOADED_MESSAGES),
        &frame(PING, 0, 0, &[7; 8]),
    ];
    tunnel.write_all(&burst.concat()).await.unwrap();
    let received_all = frame(PING, ACK, 0, &[7; 8]);
    let mut responses = Vec::new();
    while !responses
        .windows(received_all.len())
        .any(|bytes| bytes == received_all)
    {
        let read = timeout(TIMEOUT, tunnel.read_buf(&mut responses)).await;
        assert!(read.unwrap().unwrap() > 0, "the connection has ended");
    }
    let (body, _respond) = timeout(TIMEOUT, requests.recv()).await.unwrap().unwrap();
    let end = frame(DATA, END_STREAM, 1, MESSAGE);
    tunnel.write_all(&end).await.unwrap();
    let read = timeout(TIMEOUT, read_body(body)).await.unwrap();
    assert_eq!(read.unwrap(), (UPLOADED_MESSAGES + 1) * MESSAGE.len());
}

#[tokio::test]
async fn small_messages_wait_for_a_slow_client() {
    let world = World::with_env(&[MEMORY_LIMIT]).await;
    let (application, mut requests) = run_application().await;
    world.serve("web", VIP, &[application]);
    let client = world.client().await;
    let tunnel = client.tunnel(VIP, HTTP2).await;
    let (mut sender, connection) = h2::client::Builder::new()
        .data_frame_budget(PEER_FRAME_BUDGET)
        // For the windows of all streams.
        .initial_connection_window_size(1 << 20)
        .handshake::<_, Bytes>(tunnel)
        .await
        .unwrap();
    ambit_rt::spawn("client", async move {
        // Streams report the error.
        let _ended: Result<(), h2::Error> = connection.await;
    });
    let (mut bodies, mut sending) = (Vec::new(), Vec::new());
    for _ in 0..DOWNLOADS {
        sender = sender.ready().await.unwrap();
        let request = Request::get("http://web/").body(()).unwrap();
        let (response, _) = sender.send_request(request, true).unwrap();
        let (_, mut respond) = timeout(TIMEOUT, requests.recv()).await.unwrap().unwrap();
        let body = respond.send_response(Response::new(()), false).unwrap();
        let (ended, sent) = oneshot::channel();
        ambit_rt::spawn("response", async move {
            ended.send(send_messages(body).await).unwrap();
        });
        sending.push(sent);
        bodies.push(response.await.unwrap().into_body());
    }
    for (body, sent) in bodies.into_iter().zip(sending) {
        let read = timeout(TIMEOUT, read_body(body)).await.unwrap();
        assert_eq!(read.unwrap(), DOWNLOADED_MESSAGES * MESSAGE.len());
        sent.await.unwrap().unwrap();
    }
}
