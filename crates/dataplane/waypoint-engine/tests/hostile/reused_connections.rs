//! Tests of applications that close kept-alive connections as the next request arrives.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use ambit_hbone::TunnelIo;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    sync::Notify,
};

use crate::{
    application::{read_request, read_request_head, run_scripted_server, run_tunnel_server},
    fixture::{Client, HTTP1, World},
};

const VIP: &str = "10.0.0.1";
const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
const POST: &[u8] =
    b"POST / HTTP/1.1\r\nHost: web\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbody";

/// How an application ends a connection after its second request.
#[derive(Clone, Copy, Debug)]
enum Closing {
    Fin,
    Reset,
    /// After a part of the response's head.
    InHead,
}

/// Starts an application that answers one request of each connection, and closes it when another one has arrived.
/// Returns its address, and the counter of requests.
async fn closing_application(closing: Closing) -> (SocketAddr, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counting = count.clone();
    let script = move |_, stream: TcpStream| {
        let count = counting.clone();
        async move {
            let mut stream = BufReader::new(stream);
            for is_last in [false, true] {
                let Ok(Some(_)) = read_request(&mut stream).await else {
                    return;
                };
                count.fetch_add(1, Relaxed);
                let response: &[u8] = match closing {
                    _ if !is_last => b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
                    Closing::InHead => b"HTTP/1.1 200 OK\r\nContent-",
                    Closing::Fin => b"",
                    Closing::Reset => {
                        stream.get_ref().set_zero_linger().unwrap();
                        b""
                    }
                };
                if stream.write_all(response).await.is_err() {
                    return;
                }
            }
        }
    };
    (run_scripted_server(script).await.0, count)
}

#[tokio::test]
async fn repeatable_request_is_sent_once_more_on_a_new_connection() {
    for closing in [Closing::Fin, Closing::Reset, Closing::InHead] {
        let world = World::new().await;
        let (application, count) = closing_application(closing).await;
        world.serve("web", VIP, &[application]);
        let client = world.client().await;
        // The second one's connection is closed; the third one uses the connection that it was repeated on.
        for (method, sent) in [("GET", 1), ("DELETE", 3), ("OPTIONS", 5)] {
            let request = format!("{method} / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n");
            let reply = client.send_bytes(VIP, HTTP1, request.as_bytes()).await;
            assert_eq!(reply.statuses(), [200], "{closing:?}: {reply:?}");
            assert_eq!(count.load(Relaxed), sent, "{closing:?}, {method}");
        }
        assert_eq!(world.request_count_with(200, "-"), 3, "{closing:?}");
    }
}

#[tokio::test]
async fn request_with_side_effects_is_not_repeated() {
    let world = World::new().await;
    let (application, count) = closing_application(Closing::Fin).await;
    world.serve("web", VIP, &[application]);
    let client = world.client().await;
    // After the first failure, requests with side effects avoid the application's idle connections.
    for (status, sent) in [(200, 1), (503, 2), (200, 3), (200, 4)] {
        let reply = client.send_bytes(VIP, HTTP1, POST).await;
        assert_eq!(reply.statuses(), [status], "{reply:?}");
        assert_eq!(count.load(Relaxed), sent);
    }
}

/// Starts an application that responds to one request of each connection with these header lines, and closes it when
/// another one has arrived, without reading that. Returns its address, and the counter of requests.
async fn application_that_ignores_second_requests(
    header_lines: &'static str,
) -> (SocketAddr, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counting = count.clone();
    let script = move |_, stream: TcpStream| {
        let count = counting.clone();
        async move {
            let mut stream = BufReader::new(stream);
            let Ok(Some(_)) = read_request(&mut stream).await else {
                return;
            };
            count.fetch_add(1, Relaxed);
            let response = format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n{header_lines}\r\nok");
            stream.write_all(response.as_bytes()).await.unwrap();
            let _next = stream.get_ref().peek(&mut [0]).await;
        }
    };
    (run_scripted_server(script).await.0, count)
}

/// Sends the requests one after the other, and checks that each succeeds and that the application counts each once.
async fn assert_each_arrives_once(client: &Client, requests: &[&[u8]], count: &AtomicUsize) {
    for (before, request) in requests.iter().enumerate() {
        let reply = client.send_bytes(VIP, HTTP1, request).await;
        assert_eq!(reply.statuses(), [200], "{before}: {reply:?}");
        assert_eq!(count.load(Relaxed), before + 1);
    }
}

#[tokio::test]
async fn connections_that_close_cost_no_request() {
    let world = World::new().await;
    let (application, count) = application_that_ignores_second_requests("").await;
    world.serve("web", VIP, &[application]);
    let client = world.client().await;
    // The second request learns that the application closes connections early, and is sent once more.
    let requests = [GET, GET, POST, GET, POST, POST, GET, GET, GET, POST];
    assert_each_arrives_once(&client, &requests, &count).await;
    assert_eq!(world.request_count_with(200, "-"), 10);
}

#[tokio::test]
async fn announced_idle_timeout_is_observed() {
    let world = World::new().await;
    let announcement = "Keep-Alive: max=9, timeout=0\r\n";
    let (application, count) = application_that_ignores_second_requests(announcement).await;
    world.serve("web", VIP, &[application]);
    let client = world.client().await;
    assert_each_arrives_once(&client, &[POST; 3], &count).await;
}

#[tokio::test]
async fn repeatable_request_is_sent_once_more_if_its_tunnel_breaks() {
    for (breaks_connection, ip) in [(false, "127.0.9.2"), (true, "127.0.9.3")] {
        let world = World::new().await;
        let count = Arc::new(AtomicUsize::new(0));
        let counting = count.clone();
        let script = move |mut tunnel: TunnelIo, connection: Arc<Notify>| {
            let count = counting.clone();
            async move {
                read_request_head(&mut tunnel).await;
                count.fetch_add(1, Relaxed);
                let response = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                tunnel.write_all(response).await.unwrap();
                let _next = tunnel.read_u8().await;
                match breaks_connection {
                    true => connection.notify_one(),
                    false => tunnel.reset_on_drop(),
                }
            }
        };
        let _endpoint = run_tunnel_server(&world, "web", ip, script).await;
        world.serve_by_tunnel("web", VIP, ip);
        let client = world.client().await;
        assert_each_arrives_once(&client, &[GET; 5], &count).await;
        assert_eq!(world.request_count_with(200, "-"), 5);
    }
}

/// A new connection's close is the application's failure.
#[tokio::test]
async fn request_to_an_application_that_closes_each_connection_fails() {
    let world = World::new().await;
    let (application, connections) = run_scripted_server(|_, mut stream| async move {
        read_request_head(&mut stream).await;
    })
    .await;
    world.serve("web", VIP, &[application]);
    assert_eq!(world.client().await.get(VIP, HTTP1).await, 503);
    assert!(connections.load(Relaxed) <= 3, "{connections:?}");
}
