//! Tests of the pool over in-memory pipes: sharing, limits, failures, ends.

use std::{
    io,
    pin::Pin,
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Poll},
    time::Duration,
};

use ambit_testkit::{
    advance_time, build,
    h2_peer::{H2Peer, OpenTunnel},
    wait_until,
};
use tokio::{
    io::{DuplexStream, ReadBuf},
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
};

use super::*;

/// Dialer that returns one end of a new pipe for each dial, and passes the other end to the test.
#[derive(Clone)]
struct Dialer {
    server_pipes: UnboundedSender<DuplexStream>,
}

impl Dialer {
    fn new() -> (Self, UnboundedReceiver<DuplexStream>) {
        let (far, ends) = mpsc::unbounded_channel();
        (Self { server_pipes: far }, ends)
    }

    async fn dial(&self) -> Result<DuplexStream, DialError> {
        let (near, far) = tokio::io::duplex(1 << 20);
        self.server_pipes.send(far).unwrap();
        Ok(near)
    }
}

fn key(port: u16) -> Arc<PoolKey> {
    Arc::new(PoolKey {
        source: build::identity("ns", "client"),
        expected_identities: vec![build::identity("ns", "server")],
        workload: "uid".into(),
        destination: ([10, 0, 0, 2], port).into(),
        source_ip: [10, 0, 0, 1].into(),
    })
}

fn pool(settings: Settings) -> Pool {
    Pool::new(Arc::new(settings))
}

fn authority() -> Uri {
    Uri::from_static("10.0.0.2:80")
}

type OpenedTunnel = Result<(Tunnel, response::Parts), TunnelError>;

fn open(pool: &Pool, key: &Arc<PoolKey>, dialer: &Dialer) -> tokio::task::JoinHandle<OpenedTunnel> {
    let (pool, key, dialer) = (pool.clone(), key.clone(), dialer.clone());
    ambit_rt::spawn("open", async move {
        pool.open_tunnel(&key, authority(), HeaderMap::new(), || dialer.dial())
            .await
    })
}

#[tokio::test]
async fn tunnels_of_one_key_share_a_connection_and_other_keys_do_not() {
    let (dialer, mut ends) = Dialer::new();
    let pool = pool(Settings::default());
    let first = open(&pool, &key(15008), &dialer);
    let mut peer = H2Peer::accept(ends.recv().await.unwrap(), 100).await;
    let _one = peer.expect_connect("10.0.0.2:80").await.accept();
    let second = open(&pool, &key(15008), &dialer);
    let _two = peer.expect_connect("10.0.0.2:80").await.accept();
    let opened = peer
        .drive_while(async { (first.await.unwrap(), second.await.unwrap()) })
        .await;
    assert!(opened.0.is_ok() && opened.1.is_ok());
    assert_eq!(pool.connection_count(), 1);
    let _other = open(&pool, &key(15009), &dialer);
    let mut other = H2Peer::accept(ends.recv().await.unwrap(), 100).await;
    other.expect_connect("10.0.0.2:80").await.accept();
}

#[tokio::test]
async fn full_connection_gets_a_sibling_and_is_reused_when_it_has_room() {
    let (dialer, mut ends) = Dialer::new();
    let pool = pool(Settings {
        max_streams: 2,
        ..Settings::default()
    });
    let mut tunnels = Vec::new();
    let mut peers = Vec::new();
    for i in 0..3 {
        let opening = open(&pool, &key(1), &dialer);
        if i != 1 {
            peers.push(H2Peer::accept(ends.recv().await.unwrap(), 100).await);
        }
        let peer = peers.last_mut().unwrap();
        let far = peer.expect_connect("10.0.0.2:80").await.accept();
        let (near, _) = peer.drive_while(opening).await.unwrap().unwrap();
        tunnels.push((near, far));
    }
    assert_eq!(pool.connection_count(), 2);
    drop(tunnels.remove(0));
    let opening = open(&pool, &key(1), &dialer);
    // The first connection has one tunnel now, like the second.
    let next = async {
        let [first, second] = &mut peers[..] else {
            panic!("two connections")
        };
        tokio::select! {
            tunnel = first.next() => tunnel,
            tunnel = second.next() => tunnel,
        }
    };
    next.await.unwrap().accept();
    assert!(ends.try_recv().is_err(), "no third connection");
    drop(opening);
}

#[tokio::test]
async fn failed_dial_fails_all_its_waiters() {
    let pool = pool(Settings::default());
    let (fail, failing) = oneshot::channel::<()>();
    let failing = Arc::new(Mutex::new(Some(failing)));
    let mut waiting = Vec::new();
    for _ in 0..10 {
        let (pool, failing) = (pool.clone(), failing.clone());
        waiting.push(ambit_rt::spawn("open", async move {
            let dial = || async {
                let failing = failing.lock().take().expect("only one dials");
                let _reported = failing.await;
                let source = io::ErrorKind::ConnectionRefused.into();
                Err::<DuplexStream, _>(DialError::Connect {
                    addr: ([10, 0, 0, 2], 1).into(),
                    source,
                })
            };
            pool.open_tunnel(&key(1), authority(), HeaderMap::new(), dial)
                .await
        }));
    }
    wait_until("nine wait", || {
        pool.state
            .lock()
            .entries
            .values()
            .map(|entry| entry.waiters.len())
            .sum::<usize>()
            == 9
    })
    .await;
    fail.send(()).unwrap();
    for waiter in waiting {
        assert!(matches!(waiter.await.unwrap(), Err(TunnelError::Dial(_))));
    }
    assert!(
        pool.state.lock().entries.is_empty(),
        "nothing is remembered of it"
    );
}

#[tokio::test]
async fn limit_of_one_tunnel_fails_none_that_wait() {
    let (dialer, mut ends) = Dialer::new();
    let pool = pool(Settings {
        max_streams: 2,
        ..Settings::default()
    });
    let connects = Arc::new(tokio::sync::Notify::new());
    let opened = [(); 2].map(|()| {
        let (pool, dialer, connects) = (pool.clone(), dialer.clone(), connects.clone());
        ambit_rt::spawn("open", async move {
            let dial = || async {
                connects.notified().await;
                dialer.dial().await
            };
            pool.open_tunnel(&key(1), authority(), HeaderMap::new(), dial)
                .await
        })
    });
    wait_until("one dials, one waits", || {
        let state = pool.state.lock();
        let entry = state.entries.values().next();
        entry.is_some_and(|entry| (entry.dials_in_progress, entry.waiters.len()) == (1, 1))
    })
    .await;
    let refuse = || {
        Err(DialError::Prepare {
            text: "no room",
            reason: ambit_model::FailureReason::Connect,
            source: "full".into(),
        })
    };
    let refused = pool
        .open_tunnel_with_reservation(
            &key(1),
            authority(),
            HeaderMap::new(),
            || dialer.dial(),
            &refuse,
        )
        .await;
    assert!(matches!(refused, Err(TunnelError::Dial(_))));
    connects.notify_one();
    let mut peer = H2Peer::accept(ends.recv().await.unwrap(), 100).await;
    let mut both = async || {
        [
            peer.expect_connect("10.0.0.2:80").await.accept(),
            peer.expect_connect("10.0.0.2:80").await.accept(),
        ]
    };
    let _far = tokio::time::timeout(Duration::from_secs(10), both())
        .await
        .expect("both tunnels are opened");
    for one in opened {
        assert!(peer.drive_while(one).await.unwrap().is_ok());
    }
    assert!(ends.try_recv().is_err(), "one connection carries both");
}

#[tokio::test]
async fn a_cancelled_dialer_hands_its_slot_to_a_waiter() {
    let pool = pool(Settings::default());
    let first = {
        let pool = pool.clone();
        ambit_rt::spawn("open", async move {
            let never = || std::future::pending::<Result<DuplexStream, DialError>>();
            pool.open_tunnel(&key(1), authority(), HeaderMap::new(), never)
                .await
        })
    };
    wait_until("it dials", || {
        pool.state
            .lock()
            .entries
            .values()
            .any(|e| e.dials_in_progress == 1)
    })
    .await;
    let (dialer, mut ends) = Dialer::new();
    let second = open(&pool, &key(1), &dialer);
    wait_until("one waits", || {
        pool.state
            .lock()
            .entries
            .values()
            .any(|e| e.waiters.len() == 1)
    })
    .await;
    first.abort();
    let mut peer = H2Peer::accept(ends.recv().await.unwrap(), 100).await;
    let _far = peer.expect_connect("10.0.0.2:80").await.accept();
    assert!(peer.drive_while(second).await.unwrap().is_ok());
}

#[tokio::test]
async fn peer_that_closes_during_the_handshake_is_dialed_once_more() {
    let (dialer, mut ends) = Dialer::new();
    let pool = pool(Settings::default());
    let opening = open(&pool, &key(1), &dialer);
    let mut dying = H2Peer::accept(ends.recv().await.unwrap(), 100).await;
    dying.expect_connect("10.0.0.2:80").await;
    drop(dying);
    let mut peer = H2Peer::accept(ends.recv().await.unwrap(), 100).await;
    let _far = peer.expect_connect("10.0.0.2:80").await.accept();
    assert!(peer.drive_while(opening).await.unwrap().is_ok());
    // A second failure is not retried.
    let opening = open(&pool, &key(2), &dialer);
    for _ in 0..2 {
        drop(ends.recv().await.unwrap());
    }
    assert!(opening.await.unwrap().is_err());
}

#[tokio::test]
async fn after_goaway_new_tunnels_go_to_a_new_connection() {
    let (dialer, mut ends) = Dialer::new();
    let pool = pool(Settings::default());
    let opening = open(&pool, &key(1), &dialer);
    let mut peer = H2Peer::accept(ends.recv().await.unwrap(), 100).await;
    let mut far = peer.expect_connect("10.0.0.2:80").await.accept();
    let (near, _) = peer.drive_while(opening).await.unwrap().unwrap();
    peer.goaway();
    let old = ambit_rt::spawn("old", async move { peer.serve_until_closed().await });
    let mut fresh = loop {
        let opening = open(&pool, &key(1), &dialer);
        if let Ok(end) = tokio::time::timeout(Duration::from_millis(50), ends.recv()).await {
            let mut peer = H2Peer::accept(end.unwrap(), 100).await;
            peer.expect_connect("10.0.0.2:80").await.accept();
            break (peer, opening);
        }
        opening.abort();
    };
    assert!(fresh.0.drive_while(fresh.1).await.unwrap().is_ok());
    // The open tunnel continues.
    far.send(b"still here", true);
    let (mut app, proxy) = tokio::io::duplex(64);
    let mut near = near;
    let relay = ambit_rt::spawn("relay", async move {
        let mut proxy = proxy;
        crate::relay_tunnel(&mut proxy, &mut near, ()).await
    });
    let mut got = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut app, &mut got)
        .await
        .unwrap();
    assert_eq!(got, "still here");
    drop((app, far));
    relay.await.unwrap().unwrap();
    old.await.unwrap();
}

#[tokio::test]
async fn a_refused_stream_on_a_used_connection_is_tried_again_once() {
    let (dialer, mut ends) = Dialer::new();
    let pool = pool(Settings {
        max_streams: 1,
        ..Settings::default()
    });
    let opening = open(&pool, &key(1), &dialer);
    let mut peer = H2Peer::accept(ends.recv().await.unwrap(), 100).await;
    let far = peer.expect_connect("10.0.0.2:80").await.accept();
    drop(peer.drive_while(opening).await.unwrap().unwrap());
    drop(far);
    let opening = open(&pool, &key(1), &dialer);
    peer.expect_connect("10.0.0.2:80")
        .await
        .reset(h2::Reason::REFUSED_STREAM);
    let _far = peer.expect_connect("10.0.0.2:80").await.accept();
    assert!(peer.drive_while(opening).await.unwrap().is_ok());
    // A response status is final.
    let opening = open(&pool, &key(2), &dialer);
    let mut peer = H2Peer::accept(ends.recv().await.unwrap(), 100).await;
    peer.expect_connect("10.0.0.2:80").await.refuse(401);
    let refused = peer.drive_while(opening).await.unwrap();
    assert!(matches!(
        refused,
        Err(TunnelError::Status(http::StatusCode::UNAUTHORIZED))
    ));
}

#[tokio::test]
async fn the_peers_stream_limit_is_respected() {
    let (dialer, mut ends) = Dialer::new();
    let pool = pool(Settings::default());
    let opening = open(&pool, &key(1), &dialer);
    let mut peer = H2Peer::accept(ends.recv().await.unwrap(), 1).await;
    let _far = peer.expect_connect("10.0.0.2:80").await.accept();
    let _near = peer.drive_while(opening).await.unwrap().unwrap();
    let opening = open(&pool, &key(1), &dialer);
    let mut second = peer
        .drive_while(async { H2Peer::accept(ends.recv().await.unwrap(), 1).await })
        .await;
    let _far = second.expect_connect("10.0.0.2:80").await.accept();
    assert!(second.drive_while(opening).await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn idle_connections_close_and_used_ones_end_with_their_tunnel() {
    let (dialer, mut ends) = Dialer::new();
    let pool = pool(Settings {
        idle_timeout: Duration::from_secs(60),
        ..Settings::default()
    });
    let opening = open(&pool, &key(1), &dialer);
    let mut peer = H2Peer::accept(ends.recv().await.unwrap(), 100).await;
    let far = peer.expect_connect("10.0.0.2:80").await.accept();
    let (near, _) = peer.drive_while(opening).await.unwrap().unwrap();
    let released = async { wait_until("it is let go", || pool.connection_count() == 0).await };
    peer.drive_while(released).await;
    assert!(pool.state.lock().entries.is_empty());
    drop((near, far));
    peer.serve_until_closed().await;
}

#[tokio::test]
async fn a_draining_pool_opens_no_more_tunnels() {
    let (dialer, _ends) = Dialer::new();
    let pool = pool(Settings::default());
    pool.drain();
    let refused = open(&pool, &key(1), &dialer).await.unwrap();
    assert!(matches!(refused, Err(TunnelError::Draining)));
}

#[tokio::test(start_paused = true)]
async fn silent_peer_times_out() {
    let (dialer, mut ends) = Dialer::new();
    let pool = pool(Settings::default());
    let opening = open(&pool, &key(1), &dialer);
    let mut peer = H2Peer::accept(ends.recv().await.unwrap(), 100).await;
    let _far = peer.expect_connect("10.0.0.2:80").await.accept();
    let (mut near, _) = peer.drive_while(opening).await.unwrap().unwrap();
    // From now on the peer is not driven: PINGs stay unanswered.
    let (_app, mut proxy) = tokio::io::duplex(64);
    let ended = crate::relay_tunnel(&mut proxy, &mut near, ()).await;
    assert!(
        matches!(ended, Err(crate::RelayError::Tunnel(_))),
        "{ended:?}"
    );
    assert_eq!(pool.connection_count(), 0);
}

/// Opens a tunnel of a new pool; returns it with its HTTP/2 server and the server's side of the tunnel.
async fn open_one_tunnel() -> (Pool, Dialer, Tunnel, H2Peer<DuplexStream>, OpenTunnel) {
    let (dialer, mut ends) = Dialer::new();
    let pool = pool(Settings::default());
    let opening = open(&pool, &key(1), &dialer);
    let mut peer = H2Peer::accept(ends.recv().await.unwrap(), 100).await;
    let far = peer.expect_connect("10.0.0.2:80").await.accept();
    let (near, _) = peer.drive_while(opening).await.unwrap().unwrap();
    // Later connections have no peer at their other end.
    ambit_rt::spawn("ends", async move { while ends.recv().await.is_some() {} });
    (pool, dialer, near, peer, far)
}

/// Measures the time until the relay of a tunnel ends.
async fn relay_duration(mut near: Tunnel) -> Duration {
    let began = tokio::time::Instant::now();
    let (_app, mut proxy) = tokio::io::duplex(64);
    let ended = crate::relay_tunnel(&mut proxy, &mut near, ()).await;
    assert!(
        matches!(ended, Err(crate::RelayError::Tunnel(_))),
        "{ended:?}"
    );
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn tunnels_to_a_removed_silent_workload_end_in_a_second() {
    for (liveness, seconds) in [(Liveness::Removed, 1..2), (Liveness::Unhealthy, 5..6)] {
        let (pool, _dialer, near, _peer, _far) = open_one_tunnel().await;
        pool.update_liveness(|key| (key.workload == "uid").then_some(liveness));
        let lasted = relay_duration(near).await;
        assert!(
            seconds.contains(&lasted.as_secs()),
            "{liveness:?}: {lasted:?}"
        );
        assert_eq!(pool.connection_count(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn tunnels_to_a_removed_responding_workload_end_in_a_minute() {
    let (pool, dialer, near, mut peer, _far) = open_one_tunnel().await;
    pool.update_liveness(|key| (key.workload != "uid").then_some(Liveness::Removed));
    assert_eq!(pool.connection_count(), 1, "another workload's departure");
    pool.update_liveness(|_| Some(Liveness::Removed));
    assert_eq!(pool.connection_count(), 0);
    let further = open(&pool, &key(1), &dialer);
    // The peer responds until the connection ends.
    ambit_rt::spawn("peer", async move { while peer.next().await.is_some() {} });
    let lasted = relay_duration(near).await;
    assert!((59..=62).contains(&lasted.as_secs()), "{lasted:?}");
    // The tunnel is not opened on the abandoned connection.
    assert!(!further.is_finished() || further.await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn doubtful_workload_that_responds_keeps_tunnels_and_gets_more() {
    let (pool, dialer, _near, mut peer, _far) = open_one_tunnel().await;
    pool.update_liveness(|_| Some(Liveness::Unhealthy));
    peer.drive_while(advance_time(Duration::from_secs(200)))
        .await;
    pool.update_liveness(|_| Some(Liveness::Healthy));
    let opening = open(&pool, &key(1), &dialer);
    let _far = peer.expect_connect("10.0.0.2:80").await.accept();
    peer.drive_while(opening).await.unwrap().unwrap();
    assert_eq!(pool.connection_count(), 1);
}

/// Connection that panics once the peer sends something.
struct PanickingConnection(DuplexStream, Arc<AtomicBool>);

impl AsyncRead for PanickingConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self(io, fault) = self.get_mut();
        let read = Pin::new(io).poll_read(cx, buffer);
        assert!(
            read.is_pending() || !fault.load(Ordering::Relaxed),
            "a fault"
        );
        read
    }
}

impl AsyncWrite for PanickingConnection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn panic_ends_its_connection_and_the_next_one_is_dialled() {
    let (dialer, mut ends) = Dialer::new();
    let pool = pool(Settings::default());
    let fault = Arc::new(AtomicBool::new(false));
    let open = || {
        let (pool, dialer, fault) = (pool.clone(), dialer.clone(), fault.clone());
        ambit_rt::spawn("open", async move {
            let dial = || async { Ok(PanickingConnection(dialer.dial().await?, fault.clone())) };
            pool.open_tunnel(&key(1), authority(), HeaderMap::new(), dial)
                .await
        })
    };
    let opening = open();
    let mut peer = H2Peer::accept(ends.recv().await.unwrap(), 100).await;
    let mut far = peer.expect_connect("10.0.0.2:80").await.accept();
    let (mut tunnel, _) = peer.drive_while(opening).await.unwrap().unwrap();
    fault.store(true, Ordering::Relaxed);
    far.send(b"x", false);
    ambit_rt::spawn("peer", async move { while peer.next().await.is_some() {} });
    let broken = std::future::poll_fn(|cx| tunnel.recv.poll_data(cx)).await;
    assert!(broken.unwrap().is_err());
    fault.store(false, Ordering::Relaxed);
    let opening = open();
    let mut peer = H2Peer::accept(ends.recv().await.unwrap(), 100).await;
    peer.expect_connect("10.0.0.2:80").await.accept();
    peer.drive_while(opening).await.unwrap().unwrap();
    assert_eq!(pool.connection_count(), 1);
}
