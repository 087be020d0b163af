//! Tests of floods of frames: flow control blocks them, or they end only their own connection.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Uri};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    task::JoinHandle,
};

use super::*;
use crate::{client, relay_tunnel};

/// Maximum memory in bytes that a flood of useless frames on a connection may take: little more than the connection's
/// buffers.
const MEMORY_LIMIT: usize = 4 << 20;

/// Serves one connection; the application of each tunnel is a pipe that holds 1000 bytes, and sends "hello".
fn serve_connection() -> (
    DuplexStream,
    tokio::sync::mpsc::UnboundedReceiver<DuplexStream>,
    JoinHandle<Result<(), ServeError>>,
) {
    let (near, far) = tokio::io::duplex(1 << 16);
    let (apps, opened) = tokio::sync::mpsc::unbounded_channel();
    let task = ambit_rt::spawn("server", async move { server(far, apps).await });
    (near, opened, task)
}

async fn server(
    io: DuplexStream,
    apps: tokio::sync::mpsc::UnboundedSender<DuplexStream>,
) -> Result<(), ServeError> {
    serve(
        io,
        &Settings::default(),
        std::future::pending(),
        |incoming| {
            let (app, mut side) = tokio::io::duplex(1000);
            apps.send(app).unwrap();
            ambit_rt::spawn("tunnel", async move {
                if let Ok(mut tunnel) = incoming.accept(HeaderMap::new()) {
                    let _ended = relay_tunnel(&mut side, &mut tunnel, ()).await;
                }
            });
        },
    )
    .await
}

fn encode_frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Builds the header block of a CONNECT to 10.0.0.2:80, without Huffman codes or the dynamic table.
fn connect_block() -> Vec<u8> {
    let mut block = vec![2, 7];
    block.extend(b"CONNECT");
    block.extend([1, 11]);
    block.extend(b"10.0.0.2:80");
    block
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

#[tokio::test(start_paused = true)]
async fn frame_floods_stall_or_end_their_own_connection_only() {
    let opening = encode_frame(HEADERS, END_HEADERS, 1, &connect_block());
    let unfinished = encode_frame(HEADERS, 0, 1, &connect_block());
    type Flood = (&'static str, Vec<u8>, Box<dyn Fn(u32) -> Vec<u8>>);
    let floods: [Flood; 5] = [
        (
            "settings",
            vec![],
            Box::new(|_| encode_frame(SETTINGS, 0, 0, &[])),
        ),
        (
            "ping",
            vec![],
            Box::new(|i| encode_frame(PING, 0, 0, &u64::from(i).to_be_bytes())),
        ),
        (
            "empty data",
            opening,
            Box::new(|_| encode_frame(DATA, 0, 1, &[])),
        ),
        (
            "continuation",
            unfinished,
            Box::new(|_| encode_frame(CONTINUATION, 0, 1, &[0, 1, b'a', 0])),
        ),
        (
            "requests taken back",
            vec![],
            Box::new(|i| {
                let stream = 2 * i + 1;
                let mut both = encode_frame(HEADERS, END_HEADERS, stream, &connect_block());
                both.extend(encode_frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
                both
            }),
        ),
    ];
    for (name, first, next) in floods {
        let (mut near, mut opened, _served) = serve_connection();
        near.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            .await
            .unwrap();
        near.write_all(&encode_frame(SETTINGS, 0, 0, &[]))
            .await
            .unwrap();
        near.write_all(&first).await.unwrap();
        let mut sent = 0;
        for i in 0.. {
            let frame = next(i);
            // Held back, since our responses are not read; or ended.
            let Ok(Ok(())) =
                tokio::time::timeout(Duration::from_secs(5), near.write_all(&frame)).await
            else {
                break;
            };
            sent += frame.len();
            assert!(sent < MEMORY_LIMIT, "{name}: nothing stops it");
        }
        // Other connections are served meanwhile.
        let (other, far) = tokio::io::duplex(1 << 16);
        let (apps, mut others) = tokio::sync::mpsc::unbounded_channel();
        ambit_rt::spawn("server", server(far, apps));
        let (connection, driver) = client::handshake(other, &Settings::default())
            .await
            .unwrap();
        ambit_rt::spawn("driver", driver.run(|| {}));
        let authority = Uri::from_static("10.0.0.2:80");
        let (tunnel, _) = connection
            .open_tunnel(authority, HeaderMap::new())
            .await
            .unwrap();
        let mut app = others.recv().await.unwrap();
        app.write_all(b"hello").await.unwrap();
        let mut got = [0; 5];
        tunnel.into_io().read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"hello", "{name}");
        while let Ok(app) = opened.try_recv() {
            drop(app);
        }
    }
}

#[tokio::test]
async fn small_frames_to_a_stalled_reader_do_not_affect_siblings() {
    let (near, mut opened, _served) = serve_connection();
    let (mut send, connection) = h2::client::handshake(near).await.unwrap();
    ambit_rt::spawn("driver", connection);
    let request = || Request::connect("10.0.0.2:80").body(()).unwrap();
    let (answer, mut stalled) = send.send_request(request(), false).unwrap();
    answer.await.unwrap();
    let _stalled_app = opened.recv().await.unwrap();
    // Less than the stream's window, in more frames than HTTP/2 lets wait.
    let small = Bytes::from_static(&[7; 50]);
    for _ in 0..60_000 {
        stalled.reserve_capacity(small.len());
        while stalled.capacity() < small.len() {
            std::future::poll_fn(|cx| stalled.poll_capacity(cx))
                .await
                .unwrap()
                .unwrap();
        }
        stalled.send_data(small.clone(), false).unwrap();
    }
    let all_sent = 400 << 10;
    stalled.reserve_capacity(all_sent);
    while stalled.capacity() < all_sent {
        std::future::poll_fn(|cx| stalled.poll_capacity(cx))
            .await
            .unwrap()
            .unwrap();
    }
    let (answer, mut sibling) = send.send_request(request(), false).unwrap();
    let mut body = answer.await.unwrap().into_body();
    let mut app = opened.recv().await.unwrap();
    sibling
        .send_data(Bytes::from_static(b"hello"), false)
        .unwrap();
    let mut got = [0; 5];
    app.read_exact(&mut got).await.unwrap();
    app.write_all(&got).await.unwrap();
    assert_eq!(body.data().await.unwrap().unwrap(), &b"hello"[..]);
}
