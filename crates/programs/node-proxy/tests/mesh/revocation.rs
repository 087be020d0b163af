//! Tests certificates that are revoked while connections use them.

use std::{net::SocketAddr, sync::Arc};

use ambit_testkit::{Pki, build};
use tokio::io::AsyncWriteExt;

use crate::fixture::{Mesh, read_line, read_until_end};

/// Revokes the certificate of one side of an open connection; the connection must end, and both sides report the
/// reason.
async fn check_revocation_of(name: &str) {
    let (pki, crls) = Pki::with_crls();
    let pki = Arc::new(pki);
    let mut mesh = Mesh::with_pki(pki.clone(), &[]).await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.2").await;
    server.serve_echo(8080);
    let address = SocketAddr::new(server.ip, 8080);
    let mut stream = client.connect(address).await.unwrap();
    assert_eq!(read_line(&mut stream).await.unwrap(), "10.9.0.1");
    stream.write_all(b"hello\n").await.unwrap();
    assert_eq!(read_line(&mut stream).await.unwrap(), "hello");

    // A list that names another certificate has no effect.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ca-crl.pem");
    std::fs::write(
        &path,
        pki.revoke(&[&pki.cert(&build::identity("ns", "other"))]),
    )
    .unwrap();
    crls.load(&path).unwrap();
    stream.write_all(b"still here\n").await.unwrap();
    assert_eq!(read_line(&mut stream).await.unwrap(), "still here");

    let node = &mesh.nodes[usize::from(name == "server")];
    let in_use = node
        .proxy
        .certificates
        .get(&build::identity("ns", name))
        .await
        .unwrap();
    std::fs::write(&path, pki.revoke(&[&in_use])).unwrap();
    crls.load(&path).unwrap();
    let left = read_until_end(&mut stream).await;
    assert!(left.as_ref().map_or(true, Vec::is_empty), "{left:?}");
    // The peer that presented the certificate only sees the other side close; the other side knows
    // the reason.
    let judge = &mesh.nodes[usize::from(name == "client")];
    ambit_testkit::wait_until("the metrics name the reason", || {
        judge.metrics().contains("response_flags=\"CERT_REVOKED\"")
    })
    .await;
}

#[tokio::test]
async fn revoked_client_is_disconnected_by_the_servers_proxy() {
    check_revocation_of("client").await;
}

#[tokio::test]
async fn revoked_server_is_disconnected_by_the_clients_proxy() {
    check_revocation_of("server").await;
}
