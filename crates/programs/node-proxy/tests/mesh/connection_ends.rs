//! Tests how connections end: half-close, resets, drains, and peers that die.

use std::{net::SocketAddr, time::Duration};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fixture::{Mesh, OPERATION_TIMEOUT, read_line, read_until_end};

#[tokio::test]
async fn half_close_works_in_both_directions() {
    let mut mesh = Mesh::new().await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let outside = mesh.pod("outside", "10.9.0.3").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.2").await;
    let listener = server.listen(8080);
    for source in [&client, &outside] {
        for server_first in [true, false] {
            let mut near = source
                .connect(SocketAddr::new(server.ip, 8080))
                .await
                .unwrap();
            let (mut far, _) = listener.accept().await.unwrap();
            let (first, second) = if server_first {
                (&mut far, &mut near)
            } else {
                (&mut near, &mut far)
            };
            first.write_all(b"my last words").await.unwrap();
            first.shutdown().await.unwrap();
            assert_eq!(read_until_end(second).await.unwrap(), b"my last words");
            second.write_all(b"mine").await.unwrap();
            second.shutdown().await.unwrap();
            assert_eq!(read_until_end(first).await.unwrap(), b"mine");
        }
    }
    let connections = &server.pod.as_ref().unwrap().connections();
    ambit_testkit::wait_until("all connections are over", || connections.is_empty()).await;
}

#[tokio::test]
async fn bulk_data_arrives_completely_in_both_directions() {
    const BODY_BYTES: usize = 20 << 20;
    let mut mesh = Mesh::new().await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.2").await;
    let listener = server.listen(8080);
    let near = client
        .connect(SocketAddr::new(server.ip, 8080))
        .await
        .unwrap();
    let (far, _) = listener.accept().await.unwrap();
    let pattern: Vec<u8> = (0..BODY_BYTES)
        .map(|i| u8::try_from(i * 31 % 251).unwrap())
        .collect();
    let exchange = |stream: tokio::net::TcpStream| {
        let pattern = pattern.clone();
        async move {
            let (mut read, mut write) = stream.into_split();
            let expected = pattern.clone();
            let sending = async {
                write.write_all(&pattern).await.unwrap();
                write.shutdown().await.unwrap();
            };
            let receiving = async {
                let mut got = Vec::new();
                read.read_to_end(&mut got).await.unwrap();
                assert!(got == expected, "{} bytes came, not as sent", got.len());
            };
            tokio::join!(sending, receiving);
        }
    };
    let both = async { tokio::join!(exchange(near), exchange(far)) };
    tokio::time::timeout(OPERATION_TIMEOUT * 3, both)
        .await
        .unwrap();
}

#[tokio::test]
async fn death_of_the_client_reaches_the_server() {
    let mut mesh = Mesh::new().await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.2").await;
    let listener = server.listen(8080);
    let near = client
        .connect(SocketAddr::new(server.ip, 8080))
        .await
        .unwrap();
    let (mut far, _) = listener.accept().await.unwrap();
    near.set_zero_linger().unwrap();
    drop(near);
    assert!(
        read_until_end(&mut far)
            .await
            .unwrap_or_default()
            .is_empty()
    );
}

#[tokio::test]
async fn refusal_by_the_server_reaches_the_client() {
    let mut mesh = Mesh::new().await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.2").await;
    if let Ok(mut near) = client.connect(SocketAddr::new(server.ip, 1)).await {
        assert!(
            read_until_end(&mut near)
                .await
                .unwrap_or_default()
                .is_empty()
        );
    }
    assert!(
        mesh.nodes[1]
            .metrics()
            .contains("response_flags=\"CONNECT\"")
    );
}

#[tokio::test]
async fn draining_pod_keeps_connections_and_accepts_no_more() {
    let mut mesh = Mesh::new().await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.2").await;
    server.serve_echo(8080);
    let to = SocketAddr::new(server.ip, 8080);
    let mut open = client.connect(to).await.unwrap();
    read_line(&mut open).await.unwrap();
    let pod = server.pod.clone().unwrap();
    let drain = ambit_rt::spawn("drain", {
        let pod = pod.clone();
        async move { pod.drain_connections(None).await }
    });
    // The listeners close on their workers' threads.
    let mut refused = false;
    for _ in 0..1000 {
        refused = match client.connect(to).await {
            Ok(mut new) => read_line(&mut new).await.is_err(),
            Err(_reset) => true,
        };
        if refused {
            break;
        }
    }
    assert!(refused, "a draining pod goes on taking connections");
    open.write_all(b"still here\n").await.unwrap();
    assert_eq!(read_line(&mut open).await.unwrap(), "still here");
    open.shutdown().await.unwrap();
    assert!(read_until_end(&mut open).await.unwrap().is_empty());
    tokio::time::timeout(OPERATION_TIMEOUT, drain)
        .await
        .expect("the drain never ends")
        .unwrap();
    assert!(pod.connections().is_empty());
}

#[tokio::test]
async fn open_connections_are_reset_at_the_drain_deadline() {
    let mut mesh = Mesh::new().await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.2").await;
    server.serve_echo(8080);
    let mut open = client
        .connect(SocketAddr::new(server.ip, 8080))
        .await
        .unwrap();
    read_line(&mut open).await.unwrap();
    let pod = server.pod.clone().unwrap();
    let drain = pod.drain_connections(Some(Duration::from_millis(300)));
    tokio::time::timeout(OPERATION_TIMEOUT, drain)
        .await
        .expect("the drain never ends");
    assert!(
        read_until_end(&mut open)
            .await
            .unwrap_or_default()
            .is_empty()
    );
}

#[tokio::test]
async fn restarted_peer_is_dialled_again() {
    let mut mesh = Mesh::new().await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let mut server = mesh.captured_pod(1, "server", "10.9.0.2").await;
    server.serve_echo(8080);
    let to = SocketAddr::new(server.ip, 8080);
    let mut open = client.connect(to).await.unwrap();
    read_line(&mut open).await.unwrap();
    // As when the peer's proxy is killed and replaced.
    server.pod.take().unwrap().stop_now();
    mesh.capture(0, &mut server);
    assert!(
        read_until_end(&mut open)
            .await
            .unwrap_or_default()
            .is_empty()
    );
    for _ in 0..10 {
        let mut new = client.connect(to).await.unwrap();
        assert_eq!(read_line(&mut new).await.unwrap(), "10.9.0.1");
    }
}
