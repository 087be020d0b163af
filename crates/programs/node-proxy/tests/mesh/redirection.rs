//! Tests ServiceEntries whose endpoint is the caller's own loopback interface, or a link-local address.

use std::net::SocketAddr;

use ambit_testkit::build;
use tokio::io::AsyncWriteExt;

use crate::fixture::{Mesh, PodHost, read_line, read_until_end};

/// Port that the client's application serves on loopback for itself.
const ADMIN_PORT: u16 = 9999;
const LINK_LOCAL: &str = "169.254.9.9";

/// Creates a client with an application on [`ADMIN_PORT`] and on a link-local address, and Services of another tenant
/// with these as endpoints; returns the Services' addresses.
async fn set_up(env: &[(&str, &str)]) -> (Mesh, PodHost, Vec<SocketAddr>) {
    let mut mesh = Mesh::with_env(env).await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let address = format!("{LINK_LOCAL}/16").parse().unwrap();
    client.host.add_address("eth0", address).await.unwrap();
    client.host.bring_up("lo").await.unwrap();
    client.serve_echo(ADMIN_PORT);
    let endpoints = [
        build::workload_outside_mesh("loopback", &["127.0.0.1"]),
        build::workload_outside_mesh("other-loopback", &["127.9.9.9"]),
        build::workload_outside_mesh("link-local", &[LINK_LOCAL]),
        ambit_model::Workload {
            hostname: "localhost".into(),
            ..build::workload_outside_mesh("name", &[])
        },
    ];
    let mut vips = Vec::new();
    for (number, endpoint) in endpoints.into_iter().enumerate() {
        let (vip, name) = (format!("10.9.0.{}", 200 + number), endpoint.name.clone());
        let service = build::service(&name, &[&format!("/{vip}")], &[(80, ADMIN_PORT)]);
        let hostname = format!("ns/{}", service.hostname);
        mesh.publish_service(service);
        mesh.publish_workload(build::make_endpoint(
            endpoint,
            &hostname,
            &[(80, ADMIN_PORT)],
        ));
        vips.push(format!("{vip}:80").parse().unwrap());
    }
    (mesh, client, vips)
}

async fn is_reached(client: &PodHost, to: SocketAddr) -> bool {
    let Ok(mut stream) = client.connect(to).await else {
        return false;
    };
    if read_line(&mut stream).await.is_err() {
        return false;
    }
    stream.write_all(b"hello\n").await.unwrap();
    stream.shutdown().await.unwrap();
    read_until_end(&mut stream).await.unwrap() == b"hello\n"
}

#[tokio::test]
async fn connections_are_not_redirected_to_the_pod_itself() {
    let (mesh, client, vips) = set_up(&[]).await;
    for vip in vips {
        assert!(!is_reached(&client, vip).await, "{vip}");
    }
    // Addresses that the pod dials itself are not restricted.
    for own in [
        format!("127.0.0.1:{ADMIN_PORT}"),
        format!("{LINK_LOCAL}:{ADMIN_PORT}"),
    ] {
        assert!(is_reached(&client, own.parse().unwrap()).await, "{own}");
    }
    drop(mesh);
}

#[tokio::test]
async fn administrator_may_allow_redirection_to_the_pod() {
    let allowed = [(
        "AMBIT_EGRESS_ALLOWED_ADDRESSES",
        "127.0.0.0/16, 169.254.9.9",
    )];
    let (mesh, client, vips) = set_up(&allowed).await;
    let mut reached = Vec::new();
    for vip in vips {
        reached.push(is_reached(&client, vip).await);
    }
    assert_eq!(reached, [true, false, true, true]);
    drop(mesh);
}
