//! Tests of clients that disconnect while they wait for a response: their requests end within seconds, regardless of
//! what they sent before.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::AtomicUsize, atomic::Ordering::Relaxed},
};

use ambit_hbone::TunnelIo;
use ambit_testkit::wait_until;
use tokio::{io::AsyncWriteExt, sync::Notify};

use crate::{
    application::{read_request_head, run_scripted_server},
    fixture::{HTTP1, World, read_response},
};

const VIP: &str = "10.0.0.1";
const GET: &[u8] = b"GET /hang HTTP/1.1\r\nHost: web\r\n\r\n";
/// Number of requests for each case of the table.
const REQUESTS: usize = 10;

/// Way in which a client disconnects.
#[derive(Clone, Copy, Debug)]
enum Disconnect {
    /// Half-close of the connection in the tunnel (FIN).
    Fin,
    /// Reset of the tunnel.
    Reset,
}

/// Runs an application that reads only the header section of a request, and never responds. Returns its address, and
/// counters of received requests and of open connections.
async fn run_hanging_application() -> (SocketAddr, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let open = Arc::new(AtomicUsize::new(0));
    let counted = open.clone();
    let (address, all) = run_scripted_server(move |_, mut stream| {
        let counted = counted.clone();
        async move {
            counted.fetch_add(1, Relaxed);
            read_request_head(&mut stream).await;
            let _reset = stream.ready(tokio::io::Interest::ERROR).await;
            counted.fetch_sub(1, Relaxed);
        }
    })
    .await;
    (address, all, open)
}

async fn disconnect(mut tunnel: TunnelIo, leaving: Disconnect) -> Option<TunnelIo> {
    match leaving {
        Disconnect::Fin => {
            tunnel.shutdown().await.unwrap();
            Some(tunnel)
        }
        Disconnect::Reset => None,
    }
}

fn requests() -> Vec<(&'static str, Vec<u8>, &'static [Disconnect])> {
    use Disconnect::{Fin, Reset};
    let both: &[Disconnect] = &[Fin, Reset];
    let post = |length: usize, sent: usize| {
        let head = format!("POST /hang HTTP/1.1\r\nHost: web\r\nContent-Length: {length}\r\n\r\n");
        [head.as_bytes(), &vec![b'a'; sent]].concat()
    };
    let chunked = b"POST /hang HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab";
    vec![
        ("a request", GET.to_vec(), both),
        ("one more byte", [GET, b"G"].concat(), both),
        ("another request", GET.repeat(2), both),
        ("many other requests", GET.repeat(10_000), both),
        ("a whole body", post(3, 3), both),
        (
            "a whole body and more",
            [post(3, 3), vec![b'a'; 200 << 10]].concat(),
            both,
        ),
        ("half a body", post(6, 3), both),
        ("a chunk that is cut", chunked.to_vec(), both),
        // The end comes after unread bytes: only a reset is detected.
        (
            "a body that nobody reads",
            post(100 << 20, 1 << 20),
            &[Reset],
        ),
    ]
}

#[tokio::test]
async fn request_ends_when_its_client_disconnects() {
    let world = World::with_env(&[("AMBIT_CANCEL_ON_HALF_CLOSE", "true")]).await;
    let (address, all, open) = run_hanging_application().await;
    world.serve("web", VIP, &[address]);
    let client = world.client().await;
    let mut expected = 0;
    for (what, request, leavings) in requests() {
        for leaving in leavings {
            let mut held = Vec::new();
            for _ in 0..REQUESTS {
                let mut tunnel = client.tunnel(VIP, HTTP1).await;
                tunnel.write_all(&request).await.unwrap();
                held.push(tunnel);
            }
            expected += REQUESTS;
            wait_until(&format!("{what}: they arrive"), || {
                all.load(Relaxed) >= expected
            })
            .await;
            let mut left = Vec::new();
            for tunnel in held {
                left.extend(disconnect(tunnel, *leaving).await);
            }
            wait_until(&format!("{what}: over after {leaving:?}"), || {
                open.load(Relaxed) == 0
            })
            .await;
            drop(left);
            // No request was retried.
            assert_eq!(all.load(Relaxed), expected, "{what}");
        }
    }
}

#[tokio::test]
async fn reset_streams_end_their_requests() {
    let world = World::new().await;
    let (address, all, open) = run_hanging_application().await;
    world.serve("web", VIP, &[address]);
    let client = world.client().await;
    for (round, by_connection) in [(1, false), (2, true)] {
        // The HTTP/1 application counts its connections.
        let tunnel = client.tunnel(VIP, HTTP1).await;
        let (mut send, connection) = h2::client::handshake(tunnel).await.unwrap();
        let connection = ambit_rt::spawn_abortable("connection", async move {
            let _ended = connection.await;
        });
        let mut held = Vec::new();
        for with_body in [false, true] {
            for _ in 0..REQUESTS {
                send = send.ready().await.unwrap();
                let request = http::Request::post("http://web/hang").body(()).unwrap();
                let (response, mut body) = send.send_request(request, !with_body).unwrap();
                if with_body {
                    body.send_data(bytes::Bytes::from(vec![b'a'; 60_000 / REQUESTS]), false)
                        .unwrap();
                }
                held.push((response, body));
            }
        }
        let expected = REQUESTS * 2 * round;
        wait_until("they arrive", || all.load(Relaxed) == expected).await;
        if by_connection {
            drop(connection);
        } else {
            for (_, body) in &mut held {
                body.send_reset(h2::Reason::CANCEL);
            }
        }
        wait_until("they are over", || open.load(Relaxed) == 0).await;
        drop((held, send));
    }
}

#[tokio::test]
async fn half_closed_clients_get_responses_if_configured() {
    for (setting, expected) in [("false", vec![200]), ("true", vec![])] {
        let world = World::with_env(&[("AMBIT_CANCEL_ON_HALF_CLOSE", setting)]).await;
        let respond = Arc::new(Notify::new());
        let waiting = respond.clone();
        let (address, all) = run_scripted_server(move |before, mut stream| {
            let waiting = waiting.clone();
            async move {
                read_request_head(&mut stream).await;
                if before == 0 {
                    waiting.notified().await;
                }
                let ok = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
                let _cut = stream.write_all(ok).await;
            }
        })
        .await;
        world.serve("web", VIP, &[address]);
        let client = world.client().await;
        let mut tunnel = client.tunnel(VIP, HTTP1).await;
        tunnel.write_all(GET).await.unwrap();
        wait_until("the request arrives", || all.load(Relaxed) == 1).await;
        tunnel.shutdown().await.unwrap();
        // A request after the half-close, on the same connection to the waypoint: its response shows that the
        // half-close has arrived.
        let mut other = client.tunnel(VIP, HTTP1).await;
        let get = b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
        other.write_all(get).await.unwrap();
        assert_eq!(read_response(other).await.statuses(), [200], "{setting}");
        if !expected.is_empty() {
            respond.notify_one();
        }
        let reply = read_response(tunnel).await;
        assert_eq!(reply.statuses(), expected, "{setting}: {reply:?}");
    }
}
