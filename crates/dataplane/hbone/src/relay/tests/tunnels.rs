//! Tests of relays between two tunnels: ends and resets of either pass to the other.

use ambit_testkit::h2_peer::{H2Peer, OpenTunnel};
use bytes::Bytes;
use h2::Reason;
use tokio::{sync::oneshot, task::JoinHandle};

use super::*;
use crate::send_chunk::SendChunk;

/// Counter of bytes that the first tunnel sends and receives.
#[derive(Default)]
struct ByteCounter(parking_lot::Mutex<(u64, u64)>);

impl Meter for ByteCounter {
    fn count_app_sent(&self, bytes: u64) {
        self.0.lock().0 += bytes;
    }
    fn count_app_received(&self, bytes: u64) {
        self.0.lock().1 += bytes;
    }
}

/// Client tunnel that is relayed into a second tunnel, whose server the test scripts.
struct RelayedTunnel {
    client: Tunnel,
    server: H2Peer<DuplexStream>,
    open: OpenTunnel,
    relay: JoinHandle<(Result<(), RelayError>, (u64, u64))>,
}

async fn open_client_tunnel(io: DuplexStream, settings: Settings) -> Tunnel {
    let (connection, driver) = client::handshake(io, &settings).await.unwrap();
    ambit_rt::spawn("driver", driver.run(|| {}));
    let authority = Uri::from_static("10.0.0.2:80");
    connection
        .open_tunnel(authority, HeaderMap::new())
        .await
        .unwrap()
        .0
}

async fn start_relay(settings: Settings) -> RelayedTunnel {
    let (far, server_io) = tokio::io::duplex(1 << 20);
    let upstream = ambit_rt::spawn("upstream", open_client_tunnel(far, settings.clone()));
    let mut server = H2Peer::accept(server_io, 100).await;
    let open = server.expect_connect("10.0.0.2:80").await.accept();
    let mut upstream = server.drive_while(upstream).await.unwrap();

    let (near, proxy_io) = tokio::io::duplex(1 << 20);
    let (done, relay) = oneshot::channel();
    let mut done = Some(done);
    let proxy_settings = settings.clone();
    let (hand_over, taken) = oneshot::channel();
    let mut hand_over = Some(hand_over);
    ambit_rt::spawn("proxy", async move {
        let served = server::serve(
            proxy_io,
            &proxy_settings,
            std::future::pending(),
            |incoming| {
                let tunnel = incoming.accept(HeaderMap::new()).unwrap();
                let taken = hand_over.take().unwrap().send(tunnel);
                assert!(taken.is_ok());
            },
        );
        served.await
    });
    ambit_rt::spawn("relay", async move {
        let mut downstream: Tunnel = taken.await.unwrap();
        let counted = ByteCounter::default();
        let result = relay_tunnels(&mut downstream, &mut upstream, &counted).await;
        let counts = *counted.0.lock();
        let _gone = done.take().unwrap().send((result, counts));
        // Dropped tunnels are cancelled; the peers here must see the reset of the relay.
        std::future::pending::<()>().await;
    });
    let client = open_client_tunnel(near, settings).await;
    let relay = ambit_rt::spawn("result", async move { relay.await.unwrap() });
    RelayedTunnel {
        client,
        server,
        open,
        relay,
    }
}

async fn next_data(client: &mut Tunnel) -> Option<Result<Bytes, h2::Error>> {
    client.recv.data().await
}

#[tokio::test]
async fn each_direction_ends_by_itself() {
    let mut scene = start_relay(Settings::default()).await;
    let unsent = scene.client.sender.unsent.clone();
    let request = SendChunk::new(Bytes::from_static(b"request"), &unsent);
    scene.client.sender.send.send_data(request, true).unwrap();
    let RelayedTunnel {
        server,
        open,
        client,
        ..
    } = &mut scene;
    server
        .drive_while(async {
            open.expect_data(b"request").await;
            open.expect_end().await;
            open.send(b"answer", true);
            let mut got = Vec::new();
            while let Some(data) = next_data(client).await {
                got.extend_from_slice(&data.unwrap());
            }
            assert_eq!(got, b"answer");
        })
        .await;
    let (result, counts) = scene.relay.await.unwrap();
    assert!(result.is_ok(), "{result:?}");
    assert_eq!(counts, (7, 6));
}

#[tokio::test]
async fn server_reset_reaches_the_client_after_earlier_bytes() {
    let mut scene = start_relay(Settings::default()).await;
    scene.open.send(b"begun", false);
    let RelayedTunnel {
        server,
        open,
        client,
        ..
    } = &mut scene;
    server
        .drive_while(async {
            assert_eq!(&next_data(client).await.unwrap().unwrap()[..], b"begun");
            open.reset(Reason::INTERNAL_ERROR);
            let reset = next_data(client).await.unwrap().unwrap_err();
            assert_eq!(reset.reason(), Some(Reason::CONNECT_ERROR));
        })
        .await;
    let (result, _) = scene.relay.await.unwrap();
    assert!(matches!(result, Err(RelayError::Tunnel(_))));
}

#[tokio::test]
async fn client_reset_reaches_the_server() {
    let mut scene = start_relay(Settings::default()).await;
    let RelayedTunnel {
        server,
        open,
        client,
        ..
    } = &mut scene;
    // Also if the server has sent everything: the data it waits for never comes.
    open.send(b"", true);
    client.reset();
    server
        .drive_while(async {
            let reset = open.body.data().await.unwrap().unwrap_err();
            assert_eq!(reset.reason(), Some(Reason::CONNECT_ERROR));
        })
        .await;
    assert!(scene.relay.await.unwrap().0.is_err());
}

/// Checks that the reset of a stream is noticed after a complete response, while the client is silent.
#[tokio::test]
async fn server_reset_after_its_response_is_noticed() {
    let mut scene = start_relay(Settings::default()).await;
    let RelayedTunnel {
        server,
        open,
        client,
        ..
    } = &mut scene;
    open.send(b"answer", true);
    server
        .drive_while(async {
            assert_eq!(&next_data(client).await.unwrap().unwrap()[..], b"answer");
            while let Some(end) = next_data(client).await {
                assert!(end.unwrap().is_empty());
            }
            open.reset(Reason::CANCEL);
            let reset = std::future::poll_fn(|cx| client.sender.send.poll_reset(cx)).await;
            assert_eq!(reset.unwrap(), Reason::CONNECT_ERROR);
        })
        .await;
}

#[tokio::test]
async fn bytes_of_any_amount_arrive_through_small_windows() {
    let settings = Settings {
        stream_window: 65_535,
        connection_window: 65_535,
        max_frame_bytes: 16_384,
        max_send_buffer_bytes: 16_384,
        ..Settings::default()
    };
    let RelayedTunnel {
        client,
        mut server,
        mut open,
        relay,
    } = start_relay(settings).await;
    let (mut app, mut app_side) = tokio::io::duplex(4096);
    let mut client = client;
    ambit_rt::spawn("client", async move {
        relay_tunnel(&mut app_side, &mut client, ()).await
    });
    let sent: Vec<u8> = (0..1 << 20)
        .map(|i| u8::try_from(i % 253).unwrap())
        .collect();
    let expected = sent.clone();
    ambit_rt::spawn("send", async move {
        app.write_all(&sent).await.unwrap();
        app.shutdown().await.unwrap();
        let _answer = app.read_to_end(&mut Vec::new()).await;
    });
    server
        .drive_while(async {
            open.expect_data(&expected).await;
            open.expect_end().await;
            open.send(b"", true);
            assert!(relay.await.unwrap().0.is_ok());
        })
        .await;
}
