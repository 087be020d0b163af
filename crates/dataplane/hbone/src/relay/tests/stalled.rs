//! Tests that tunnels with stalled readers do not block others on the same connection.

use std::time::Duration;

use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::timeout,
};

use super::*;
use crate::Permit;

/// Number of stalled streams on a connection of a hundred.
const STALLED_STREAMS: usize = 99;
/// Bytes sent on the stream that is not stalled: more than the initial window of the connection.
const RELAYED_BYTES: usize = 24 << 20;
/// Bytes that are sent in frames of one byte: as many as the smallest stream window holds.
const SMALL_FRAMES: usize = 16 << 10;
pub(super) const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Opens `STALLED_STREAMS` tunnels and one more on a connection; returns client and server side of each.
async fn open_hundred_tunnels() -> Vec<(Tunnel, Tunnel)> {
    open_tunnels(STALLED_STREAMS + 1, Settings::default()).await
}

/// Opens tunnels on one connection, both ends of which have these settings.
async fn open_tunnels(count: usize, settings: Settings) -> Vec<(Tunnel, Tunnel)> {
    let pipe = tokio::io::duplex(1 << 20);
    open_tunnels_over(pipe, [None, None], count, settings).await
}

/// Opens tunnels on one connection over a pipe, whose client and server end hold these permits.
pub(super) async fn open_tunnels_over(
    (near, far): (DuplexStream, DuplexStream),
    [client_permit, server_permit]: [Option<Box<dyn Permit>>; 2],
    count: usize,
    settings: Settings,
) -> Vec<(Tunnel, Tunnel)> {
    let (accepted, mut tunnels) = mpsc::unbounded_channel();
    let server_settings = settings.clone();
    ambit_rt::spawn("server", async move {
        let never = std::future::pending();
        let permit = server_permit;
        server::serve_with_permit(far, &server_settings, permit, never, |incoming| {
            let tunnel = incoming.accept(HeaderMap::new()).unwrap();
            accepted.send(tunnel).unwrap();
        })
        .await
    });
    let (connection, driver) = client::handshake(near, &settings).await.unwrap();
    ambit_rt::spawn("driver", driver.with_permit(client_permit).run(|| {}));
    let mut all = Vec::new();
    for _ in 0..count {
        let authority = Uri::from_static("10.0.0.2:80");
        let opened = connection.open_tunnel(authority, HeaderMap::new()).await;
        let (tunnel, _) = opened.unwrap();
        all.push((tunnel, tunnels.recv().await.unwrap()));
    }
    all
}

/// Writes to a tunnel whose reader does not read, until the flow-control windows are full.
fn flood(writer: Tunnel) {
    let mut writer = writer.into_io();
    ambit_rt::spawn("flood", async move {
        let piece = vec![0; 64 << 10];
        while writer.write_all(&piece).await.is_ok() {}
    });
}

pub(super) async fn check_transfer(writer: Tunnel, reader: Tunnel) {
    let (mut writer, mut reader) = (writer.into_io(), reader.into_io());
    let writing = ambit_rt::spawn("writer", async move {
        let piece = vec![0; 64 << 10];
        for _ in 0..RELAYED_BYTES / piece.len() {
            writer.write_all(&piece).await.unwrap();
        }
        writer.shutdown().await.unwrap();
        // A tunnel that is dropped before it is read to its end would be reset.
        writer
    });
    let mut got = 0;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = timeout(TEST_TIMEOUT, reader.read(&mut buffer)).await;
        match read
            .expect("a stalled stream holds up its sibling")
            .unwrap()
        {
            0 => break,
            n => got += n,
        }
    }
    assert_eq!(got, RELAYED_BYTES);
    drop(writing.await.unwrap());
}

#[tokio::test]
async fn stalled_uploads_do_not_hold_up_a_sibling() {
    let mut all = open_hundred_tunnels().await;
    let (near, far) = all.pop().unwrap();
    let mut unread = Vec::new();
    for (near, far) in all {
        flood(near);
        unread.push(far);
    }
    check_transfer(near, far).await;
}

#[tokio::test]
async fn stalled_downloads_do_not_hold_up_a_sibling() {
    let mut all = open_hundred_tunnels().await;
    let (near, far) = all.pop().unwrap();
    let mut unread = Vec::new();
    for (near, far) in all {
        flood(far);
        unread.push(near);
    }
    check_transfer(far, near).await;
}

/// Returns settings with the smallest windows that a waypoint uses.
pub(super) fn settings_with_small_windows() -> Settings {
    Settings {
        connection_window: 64 << 10,
        stream_window: 64 << 10,
        min_stream_window: 16 << 10,
        ..Settings::default()
    }
}

/// Opens five tunnels with the smallest windows that a waypoint uses.
async fn open_tunnels_with_small_windows() -> Vec<(Tunnel, Tunnel)> {
    open_tunnels(5, settings_with_small_windows()).await
}

/// Returns as many bytes as small frames are sent, of which two neighbours differ.
fn numbered_bytes() -> impl Iterator<Item = u8> {
    (0..=250).cycle().take(SMALL_FRAMES)
}

/// Sends frames of one byte, all before the peer runs.
async fn send_small_frames(writer: &mut TunnelIo) {
    for byte in numbered_bytes() {
        writer.write_all(&[byte]).await.unwrap();
    }
}

async fn check_small_frames(reader: &mut TunnelIo) {
    let mut got = vec![0; SMALL_FRAMES];
    let read = timeout(TEST_TIMEOUT, reader.read_exact(&mut got)).await;
    read.expect("bytes are missing").unwrap();
    assert!(
        got.into_iter().eq(numbered_bytes()),
        "other bytes arrived than were sent"
    );
}

/// Sends small frames on all pairs but the last, whose readers read them only after the last pair's transfer.
async fn check_unread_small_frames(mut pairs: Vec<(Tunnel, Tunnel)>) {
    let (near, far) = pairs.pop().unwrap();
    let mut stalled = Vec::new();
    for (near, far) in pairs {
        let (mut near, far) = (near.into_io(), far.into_io());
        send_small_frames(&mut near).await;
        stalled.push((near, far));
    }
    check_transfer(near, far).await;
    for (near, mut far) in stalled {
        check_small_frames(&mut far).await;
        drop(near);
    }
}

#[tokio::test]
async fn small_frames_that_a_server_does_not_read_end_no_sibling() {
    check_unread_small_frames(open_tunnels_with_small_windows().await).await;
}

#[tokio::test]
async fn small_frames_that_a_client_does_not_read_end_no_sibling() {
    let pairs = open_tunnels_with_small_windows().await;
    check_unread_small_frames(pairs.into_iter().map(|(near, far)| (far, near)).collect()).await;
}

/// A reader that waits is woken for data that the driver takes on its behalf.
#[tokio::test]
async fn bursts_of_small_frames_reach_a_waiting_reader() {
    for mut pairs in [
        open_tunnels_with_small_windows().await,
        open_tunnels(1, Settings::default()).await,
    ] {
        let (near, far) = pairs.pop().unwrap();
        let (mut near, mut far) = (near.into_io(), far.into_io());
        let reading = ambit_rt::spawn("reader", async move {
            for _ in 0..3 {
                check_small_frames(&mut far).await;
            }
            far
        });
        for _ in 0..3 {
            send_small_frames(&mut near).await;
        }
        drop(reading.await.unwrap());
    }
}

/// A relay takes frames as soon as it runs, but not while HTTP/2 parses a burst of them.
#[tokio::test]
async fn bursts_of_small_frames_pass_a_relay() {
    let (near, far) = open_tunnels_with_small_windows().await.pop().unwrap();
    let (mut app, mut side) = tokio::io::duplex(1 << 10);
    let relay = ambit_rt::spawn("relay", async move {
        let mut far = far;
        relay_tunnel(&mut side, &mut far, ()).await
    });
    let mut near = near.into_io();
    for _ in 0..3 {
        send_small_frames(&mut near).await;
        let mut got = vec![0; SMALL_FRAMES];
        timeout(TEST_TIMEOUT, app.read_exact(&mut got))
            .await
            .expect("bytes are missing")
            .unwrap();
    }
    drop((app, near));
    let _over = timeout(TEST_TIMEOUT, relay)
        .await
        .expect("the relay goes on");
}

#[tokio::test]
async fn socket_reset_ends_a_stalled_upload() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut app = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    let (mut side, _) = listener.accept().await.unwrap();
    let mut all = open_hundred_tunnels().await;
    // The far end is never read.
    let (mut near, _far) = all.pop().unwrap();
    let relay = ambit_rt::spawn("relay", async move {
        relay_tunnel(&mut side, &mut near, ()).await
    });
    let piece = vec![0; 64 << 10];
    while timeout(Duration::from_millis(500), app.write_all(&piece))
        .await
        .is_ok()
    {}
    app.set_zero_linger().unwrap();
    drop(app);
    let ended = timeout(TEST_TIMEOUT, relay)
        .await
        .expect("the upload goes on");
    assert!(
        matches!(ended, Ok(Err(RelayError::Receive(_)))),
        "{ended:?}"
    );
}
