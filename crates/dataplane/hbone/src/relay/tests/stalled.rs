//! Tests that tunnels with stalled readers do not block others on the same connection.

use std::time::Duration;

use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::timeout,
};

use super::*;

/// Number of stalled streams on a connection of a hundred.
const STALLED_STREAMS: usize = 99;
/// Bytes sent on the stream that is not stalled: more than the initial window of the connection.
const RELAYED_BYTES: usize = 24 << 20;
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Opens `STALLED_STREAMS` tunnels and one more on a connection; returns client and server side of each.
async fn open_hundred_tunnels() -> Vec<(Tunnel, Tunnel)> {
    let (near, far) = tokio::io::duplex(1 << 20);
    let (accepted, mut tunnels) = mpsc::unbounded_channel();
    ambit_rt::spawn("server", async move {
        let settings = Settings::default();
        let served = server::serve(far, &settings, std::future::pending(), |incoming| {
            let tunnel = incoming.accept(HeaderMap::new()).unwrap();
            accepted.send(tunnel).unwrap();
        });
        served.await
    });
    let (connection, driver) = client::handshake(near, &Settings::default()).await.unwrap();
    ambit_rt::spawn("driver", driver.run(|| {}));
    let mut all = Vec::new();
    for _ in 0..=STALLED_STREAMS {
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

async fn check_transfer(writer: Tunnel, reader: Tunnel) {
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
