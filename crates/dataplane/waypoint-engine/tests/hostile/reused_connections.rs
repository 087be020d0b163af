//! Tests of applications that close kept-alive connections as the next request arrives.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use crate::{
    application::{read_request_head, run_scripted_server},
    fixture::{HTTP1, World},
};

const VIP: &str = "10.0.0.1";

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
    let script = move |_, mut stream: TcpStream| {
        let count = counting.clone();
        async move {
            for is_last in [false, true] {
                if stream.peek(&mut [0]).await.unwrap_or(0) == 0 {
                    return;
                }
                read_request_head(&mut stream).await;
                count.fetch_add(1, Relaxed);
                let response: &[u8] = match closing {
                    _ if !is_last => b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
                    Closing::InHead => b"HTTP/1.1 200 OK\r\nContent-",
                    Closing::Fin => b"",
                    Closing::Reset => {
                        stream.set_zero_linger().unwrap();
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
    for (status, sent) in [(200, 1), (503, 2)] {
        let request =
            b"POST / HTTP/1.1\r\nHost: web\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        let reply = client.send_bytes(VIP, HTTP1, request).await;
        assert_eq!(reply.statuses(), [status], "{reply:?}");
        assert_eq!(count.load(Relaxed), sent);
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
