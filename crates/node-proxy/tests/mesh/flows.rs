//! Which way connections go, and what the application at the other end sees.

use std::net::SocketAddr;

use tokio::io::AsyncWriteExt;

use crate::fixture::{Mesh, line, rest};

#[tokio::test]
async fn captured_pods_talk_through_a_tunnel_and_the_server_sees_the_client_s_address() {
    let mut mesh = Mesh::new().await;
    let client = mesh.captured(0, "client", "10.9.0.1").await;
    let server = mesh.captured(1, "server", "10.9.0.2").await;
    server.echo(8080);
    let mut stream = client
        .connect(SocketAddr::new(server.ip, 8080))
        .await
        .unwrap();
    assert_eq!(line(&mut stream).await.unwrap(), "10.9.0.1");
    stream.write_all(b"hello").await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(rest(&mut stream).await.unwrap(), b"hello");
    let source = mesh.nodes[0].metrics();
    assert!(
        source.contains("connection_security_policy=\"mutual_tls\""),
        "{source}"
    );
}
