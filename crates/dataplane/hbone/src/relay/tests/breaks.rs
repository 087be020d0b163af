//! Tests that a broken side is passed on as a reset, after the bytes that it sent before.

use std::{
    pin::Pin,
    task::{Context, Waker},
};

use ambit_testkit::h2_peer::{H2Peer, OpenTunnel};
use bytes::Bytes;
use h2::Reason;
use tokio::{io::ReadBuf, sync::Barrier, task::JoinHandle};

use super::*;
use tokio::io::{AsyncRead, AsyncWrite};

const AUTHORITY: &str = "10.0.0.2:80";

/// Starts a relay of `app` to a scripted server, which has accepted the tunnel. Returns `app`, still open.
async fn relay_to_scripted_server<A>(
    app: A,
) -> (
    H2Peer<DuplexStream>,
    OpenTunnel,
    JoinHandle<(A, Result<(), RelayError>)>,
)
where
    A: Socket + Send + 'static,
{
    relay_over_pipe(1 << 20, Arc::new(Barrier::new(1)), app).await
}

async fn relay_over_pipe<A>(
    pipe: usize,
    begin: Arc<Barrier>,
    mut app: A,
) -> (
    H2Peer<DuplexStream>,
    OpenTunnel,
    JoinHandle<(A, Result<(), RelayError>)>,
)
where
    A: Socket + Send + 'static,
{
    let (near, far) = tokio::io::duplex(pipe);
    let relay = ambit_rt::spawn("relay", async move {
        let (connection, driver) = client::handshake(near, &Settings::default()).await.unwrap();
        ambit_rt::spawn("driver", driver.run(|| {}));
        let authority = Uri::from_static(AUTHORITY);
        let opened = connection.open_tunnel(authority, HeaderMap::new()).await;
        let (mut tunnel, _) = opened.unwrap();
        begin.wait().await;
        let result = relay_tunnel(&mut app, &mut tunnel, ()).await;
        // The connection outlives its tunnel.
        ambit_rt::spawn("connection", async move {
            std::future::pending::<()>().await;
            drop(connection);
        });
        (app, result)
    });
    let mut peer = H2Peer::accept(far, 100).await;
    let open = peer.expect_connect(AUTHORITY).await.accept();
    (peer, open, relay)
}

/// Whether the pipe has neither bytes nor an end of data to read.
fn is_silent(pipe: &mut DuplexStream) -> bool {
    let mut buffer = [0; 16];
    let mut buffer = ReadBuf::new(&mut buffer);
    Pin::new(pipe)
        .poll_read(&mut Context::from_waker(Waker::noop()), &mut buffer)
        .is_pending()
}

/// Application whose connection was reset after it sent these bytes.
struct ResetApplication(&'static [u8]);

impl Socket for ResetApplication {}

impl AsyncRead for ResetApplication {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let n = self.0.len().min(buffer.remaining());
        if n == 0 {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let (now, later) = self.0.split_at(n);
        buffer.put_slice(now);
        self.0 = later;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ResetApplication {
    fn poll_write(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        _bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
    }
}

#[tokio::test]
async fn stream_reset_with_any_code_is_no_end_of_data() {
    for reason in [
        Reason::NO_ERROR,
        Reason::CANCEL,
        Reason::CONNECT_ERROR,
        Reason::INTERNAL_ERROR,
        Reason::REFUSED_STREAM,
    ] {
        let (mut app, side) = tokio::io::duplex(1 << 16);
        let (mut peer, mut open, relay) = relay_to_scripted_server(side).await;
        open.send(b"part", false);
        let mut got = [0; 4];
        peer.drive_while(app.read_exact(&mut got)).await.unwrap();
        open.reset(reason);
        let (_side, result) = peer.drive_while(relay).await.unwrap();
        assert!(matches!(result, Err(RelayError::Tunnel(_))), "{reason}");
        assert!(is_silent(&mut app), "{reason}");
    }
}

#[tokio::test]
async fn closed_or_timed_out_connection_is_no_end_of_data() {
    for goaway in [false, true] {
        let (mut app, side) = tokio::io::duplex(1 << 16);
        let (mut peer, mut open, relay) = relay_to_scripted_server(side).await;
        open.send(b"part", false);
        let mut got = [0; 4];
        peer.drive_while(app.read_exact(&mut got)).await.unwrap();
        if goaway {
            peer.abort(Reason::INTERNAL_ERROR).await;
        } else {
            drop(peer);
        }
        let (_side, result) = relay.await.unwrap();
        assert!(matches!(result, Err(RelayError::Tunnel(_))), "{result:?}");
        assert!(is_silent(&mut app));
    }
}

#[tokio::test]
async fn full_response_stays_intact_when_the_server_stops_reading() {
    let (mut app, side) = tokio::io::duplex(1 << 16);
    let (mut peer, mut open, relay) = relay_to_scripted_server(side).await;
    open.send(b"all", true);
    let mut got = Vec::new();
    peer.drive_while(app.read_to_end(&mut got)).await.unwrap();
    assert_eq!(got, b"all");
    open.reset(Reason::NO_ERROR);
    let (_side, result) = peer.drive_while(relay).await.unwrap();
    result.unwrap();
}

#[tokio::test]
async fn crash_is_a_connect_error_after_all_sent_bytes() {
    static SENT: [u8; 300_000] = [7; 300_000];
    // More than the peer's window.
    let (mut peer, mut open, relay) = relay_to_scripted_server(ResetApplication(&SENT)).await;
    let error = peer
        .drive_while(async {
            open.expect_data(&SENT).await;
            open.body.data().await.unwrap().unwrap_err()
        })
        .await;
    assert_eq!(error.reason(), Some(Reason::CONNECT_ERROR));
    let (_app, result) = peer.drive_while(relay).await.unwrap();
    assert!(matches!(result, Err(RelayError::Receive(_))), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn stalled_peers_time_out() {
    static SENT: [u8; 50_000] = [7; 50_000];
    // Within the peer's window, but the connection takes no more than 4 kB.
    let begin = Arc::new(Barrier::new(2));
    let (mut peer, _open, relay) =
        relay_over_pipe(4096, begin.clone(), ResetApplication(&SENT)).await;
    peer.drive_while(begin.wait()).await;
    let (_app, result) = relay.await.unwrap();
    assert!(matches!(result, Err(RelayError::Receive(_))), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn application_that_does_not_read_times_out() {
    let (mut app, side) = tokio::io::duplex(1000);
    let (mut peer, mut open, relay) = relay_to_scripted_server(side).await;
    open.send
        .send_data(Bytes::from(vec![7; 10_000]), false)
        .unwrap();
    // One byte, and then nothing more.
    peer.drive_while(app.read_u8()).await.unwrap();
    open.reset(Reason::CONNECT_ERROR);
    let (_side, result) = peer.drive_while(relay).await.unwrap();
    assert!(matches!(result, Err(RelayError::Tunnel(_))), "{result:?}");
}

#[tokio::test]
async fn bytes_a_socket_sent_are_relayed_when_writing_to_it_fails() {
    struct Answered(&'static [u8]);
    impl AsyncRead for Answered {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _cx: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            // Like Linux after a writer got the error: the remaining data, then an end.
            buffer.put_slice(std::mem::take(&mut self.0));
            Poll::Ready(Ok(()))
        }
    }
    impl AsyncWrite for Answered {
        fn poll_write(
            self: Pin<&mut Self>,
            _cx: &mut Context<'_>,
            _bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
        }
        fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
        fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }
    impl Socket for Answered {}
    let (mut client, mut side) = tokio::io::duplex(1 << 16);
    client.write_all(b"a long request").await.unwrap();
    let mut server = Answered(b"too long");
    let result = relay_plain(&mut side, &mut server, ()).await;
    assert!(matches!(result, Err(RelayError::Send(_))), "{result:?}");
    let mut got = [0; 8];
    client.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"too long");
    assert!(is_silent(&mut client), "no end of data");
}
