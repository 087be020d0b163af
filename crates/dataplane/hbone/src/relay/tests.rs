//! Tests of the relay over in-memory pipes: ends of data, broken sides, slow readers.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, Uri};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::*;
use crate::{Settings, TunnelIo, client, server};

mod breaks;
mod growth;
mod stalled;
mod tunnels;

/// Connects two in-memory pipes through a tunnel, with a relay at each end of it, and returns the pipes' outer ends.
async fn connect_through_tunnel(settings: Settings, pipe: usize) -> (DuplexStream, DuplexStream) {
    let (near, far) = tokio::io::duplex(1 << 20);
    let (server_app, server_side) = tokio::io::duplex(pipe);
    let server_side = Arc::new(parking_lot::Mutex::new(Some(server_side)));
    let server_settings = settings.clone();
    ambit_rt::spawn("server", async move {
        let served = server::serve(far, &server_settings, std::future::pending(), |incoming| {
            let mut side = server_side.lock().take().expect("one tunnel");
            ambit_rt::spawn("tunnel", async move {
                let mut tunnel = incoming.accept(HeaderMap::new()).unwrap();
                relay_tunnel(&mut side, &mut tunnel, ()).await
            });
        });
        served.await
    });
    let (connection, driver) = client::handshake(near, &settings).await.unwrap();
    ambit_rt::spawn("driver", driver.run(|| {}));
    let (client_app, mut client_side) = tokio::io::duplex(pipe);
    ambit_rt::spawn("client", async move {
        let authority = Uri::from_static("10.0.0.2:80");
        let (mut tunnel, _) = connection
            .open_tunnel(authority, HeaderMap::new())
            .await
            .unwrap();
        relay_tunnel(&mut client_side, &mut tunnel, ()).await
    });
    (client_app, server_app)
}

#[tokio::test]
async fn bytes_of_all_sizes_arrive_in_order() {
    let (mut near, mut far) = connect_through_tunnel(Settings::default(), 300_000).await;
    for size in [1, 100, 8 << 10, (8 << 10) + 1, 64 << 10, 300_000] {
        let sent: Vec<u8> = (0..size).map(|i| u8::try_from(i % 251).unwrap()).collect();
        near.write_all(&sent).await.unwrap();
        let mut got = vec![0; size];
        far.read_exact(&mut got).await.unwrap();
        assert!(got == sent, "{size} bytes");
    }
}

#[tokio::test]
async fn small_windows_lose_no_bytes() {
    let settings = Settings {
        stream_window: 65_535,
        connection_window: 65_535,
        max_frame_bytes: 16_384,
        max_send_buffer_bytes: 16_384,
        ..Settings::default()
    };
    let (mut near, mut far) = connect_through_tunnel(settings, 4096).await;
    let sent: Vec<u8> = (0..2 << 20)
        .map(|i| u8::try_from(i % 253).unwrap())
        .collect();
    let expected = sent.clone();
    let sending = ambit_rt::spawn("send", async move {
        near.write_all(&sent).await.unwrap();
        near.shutdown().await.unwrap();
        let mut back = Vec::new();
        near.read_to_end(&mut back).await.unwrap();
        back
    });
    let mut got = Vec::new();
    far.read_to_end(&mut got).await.unwrap();
    assert!(got == expected);
    far.write_all(b"thanks").await.unwrap();
    drop(far);
    assert_eq!(sending.await.unwrap(), b"thanks");
}

#[tokio::test(start_paused = true)]
async fn stalled_readers_stop_the_writer_at_the_window() {
    let settings = Settings {
        stream_window: 128 << 10,
        max_send_buffer_bytes: 64 << 10,
        ..Settings::default()
    };
    let (mut near, _far) = connect_through_tunnel(settings, 4096).await;
    let piece = vec![0; 4096];
    let mut sent = 0;
    while let Ok(written) =
        tokio::time::timeout(Duration::from_secs(5), near.write_all(&piece)).await
    {
        written.unwrap();
        sent += piece.len();
        assert!(sent < 2 << 20, "nothing stops the writer");
    }
    assert!(sent >= 128 << 10);
}

#[tokio::test]
async fn plain_sockets_are_copied_with_half_close() {
    let (mut near, mut near_side) = tokio::io::duplex(1000);
    let (mut far, mut far_side) = tokio::io::duplex(1000);
    let relay = ambit_rt::spawn("relay", async move {
        relay_plain(&mut near_side, &mut far_side, ()).await
    });
    let sent: Vec<u8> = (0..100_000)
        .map(|i| u8::try_from(i % 249).unwrap())
        .collect();
    let expected = sent.clone();
    let sending = ambit_rt::spawn("send", async move {
        near.write_all(&sent).await.unwrap();
        near.shutdown().await.unwrap();
        let mut back = Vec::new();
        near.read_to_end(&mut back).await.unwrap();
        back
    });
    let mut got = Vec::new();
    far.read_to_end(&mut got).await.unwrap();
    assert!(got == expected);
    far.write_all(b"thanks").await.unwrap();
    drop(far);
    assert_eq!(sending.await.unwrap(), b"thanks");
    relay.await.unwrap().unwrap();
}

/// Serves one HTTP/2 connection, whose client the test implements frame by frame.
fn serve_raw_client(
    settings: Settings,
) -> (
    DuplexStream,
    tokio::task::JoinHandle<Result<(), crate::ServeError>>,
) {
    let (near, far) = tokio::io::duplex(1 << 16);
    let task = ambit_rt::spawn("server", async move {
        server::serve(far, &settings, std::future::pending(), |incoming| {
            incoming.refuse(http::StatusCode::BAD_REQUEST);
        })
        .await
    });
    (near, task)
}

#[tokio::test(start_paused = true)]
async fn client_without_a_preface_times_out() {
    let (_near, served) = serve_raw_client(Settings::default());
    let ended = served.await.unwrap();
    assert!(
        matches!(ended, Err(crate::ServeError::HandshakeTimeout(_))),
        "{ended:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn client_that_stops_within_a_frame_times_out() {
    let (mut near, served) = serve_raw_client(Settings::default());
    near.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .await
        .unwrap();
    // A HEADERS frame that declares 100 bytes and has one.
    near.write_all(b"\0\0\x64\x01\x04\0\0\0\x01x")
        .await
        .unwrap();
    let ended = served.await.unwrap();
    assert!(
        matches!(ended, Err(crate::ServeError::PingTimeout(_))),
        "{ended:?}"
    );
}

#[tokio::test]
async fn bytes_other_than_http2_are_refused() {
    let (mut near, served) = serve_raw_client(Settings::default());
    near.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    assert!(matches!(
        served.await.unwrap(),
        Err(crate::ServeError::Handshake(_))
    ));
}

#[tokio::test]
async fn requests_other_than_connect_are_detected() {
    let (near, far) = tokio::io::duplex(1 << 16);
    ambit_rt::spawn("server", async move {
        server::serve(
            far,
            &Settings::default(),
            std::future::pending(),
            |incoming| {
                let status = match incoming.target() {
                    Err(server::IncomingRequestError::MethodNotConnect) => {
                        http::StatusCode::METHOD_NOT_ALLOWED
                    }
                    other => panic!("{other:?}"),
                };
                incoming.refuse(status);
            },
        )
        .await
    });
    let (mut send, connection) = h2::client::handshake(near).await.unwrap();
    ambit_rt::spawn("driver", connection);
    let request = http::Request::get("https://10.0.0.2:80/").body(()).unwrap();
    let (answer, _) = send.send_request(request, true).unwrap();
    assert_eq!(answer.await.unwrap().status(), 405);
}
