//! Tests connections to deleted pods, to endpoints that accept no connections, and to waypoints without a serving pod:
//! no connection hangs, and another pod serves it if one can.

use std::{net::SocketAddr, time::Duration};

use ambit_model::{GatewayAddress, GatewayDestination, NamespacedHostname};
use ambit_proxy::state::MeshUpdate;
use ambit_testkit::build;
use tokio::{io::AsyncWriteExt, time::timeout};

use crate::fixture::{Mesh, OPERATION_TIMEOUT, PodHost, read_line, read_until_end};

const SERVICE: &str = "ns/server.ns.svc.cluster.local";
const VIP: &str = "10.9.0.102:80";
/// Timeout within which connections must end, below the half minute after which an unresponsive one is closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Adds a captured pod as an endpoint of the service [`SERVICE`].
async fn add_endpoint(mesh: &mut Mesh, name: &str, ip: &str) -> PodHost {
    let pod = mesh.captured_pod(1, name, ip).await;
    let record = build::workload(name, &[ip]);
    mesh.publish_workload(build::make_endpoint(record, SERVICE, &[(80, 8080)]));
    pod
}

fn removal_update(name: &str) -> MeshUpdate {
    MeshUpdate::AddressRemoved(format!("Kubernetes//Pod/ns/{name}").into())
}

#[tokio::test]
async fn connections_to_a_deleted_pod_end_with_its_record() {
    let mut mesh = Mesh::new().await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let server = add_endpoint(&mut mesh, "server", "10.9.0.2").await;
    server.serve_echo(8080);
    let to = SocketAddr::new(server.ip, 8080);
    let mut open = client.connect(to).await.unwrap();
    read_line(&mut open).await.unwrap();
    // The pod's network is deleted with it; unsent bytes of its proxy are lost.
    server.host.remove_link("eth0").await.unwrap();
    open.write_all(b"into the void").await.unwrap();
    mesh.publish(removal_update("server"));
    let ended = timeout(CLOSE_TIMEOUT, read_until_end(&mut open)).await;
    assert!(ended.expect("it hangs").is_err());
}

#[tokio::test]
async fn connection_in_setup_survives_its_endpoint() {
    let mut mesh = Mesh::new().await;
    mesh.publish_service(build::service("server", &["/10.9.0.102"], &[(80, 8080)]));
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let server = add_endpoint(&mut mesh, "server", "10.9.0.2").await;
    server.serve_echo(8080);
    let mut pooled = client.connect(VIP.parse().unwrap()).await.unwrap();
    read_line(&mut pooled).await.unwrap();
    server.host.remove_link("eth0").await.unwrap();
    let mut opening = client.connect(VIP.parse().unwrap()).await.unwrap();
    let opened = read_line(&mut opening);
    tokio::pin!(opened);
    // The endpoint does not respond.
    assert!(
        timeout(Duration::from_millis(300), &mut opened)
            .await
            .is_err()
    );
    let other = add_endpoint(&mut mesh, "other", "10.9.0.3").await;
    other.serve_echo(8080);
    mesh.publish(removal_update("server"));
    let opened = timeout(CLOSE_TIMEOUT, opened).await.expect("it hangs");
    assert_eq!(opened.unwrap(), "10.9.0.1");
}

#[tokio::test]
async fn refusing_endpoint_is_replaced_by_another() {
    let mut mesh = Mesh::new().await;
    mesh.publish_service(build::service("server", &["/10.9.0.102"], &[(80, 8080)]));
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let _stopped = add_endpoint(&mut mesh, "stopped", "10.9.0.2").await;
    let server = add_endpoint(&mut mesh, "server", "10.9.0.3").await;
    server.serve_echo(8080);
    for _ in 0..20 {
        let mut open = client.connect(VIP.parse().unwrap()).await.unwrap();
        assert_eq!(read_line(&mut open).await.unwrap(), "10.9.0.1");
    }
    // The waypoint's pod itself has no alternative.
    let refused = client.connect("10.9.0.2:8080".parse().unwrap()).await;
    if let Ok(mut refused) = refused {
        read_until_end(&mut refused).await.unwrap_err();
    }
}

#[tokio::test]
async fn connections_wait_five_seconds_for_a_waypoints_pod() {
    let mut mesh = Mesh::new().await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let mut service = build::service("server", &["10.9.0.102"], &[(80, 8080)]);
    service.waypoint = Some(GatewayAddress {
        destination: GatewayDestination::Hostname(NamespacedHostname::new(
            "ns",
            "waypoint.ns.svc.cluster.local",
        )),
        hbone_mtls_port: 15008,
    });
    mesh.publish_service(service);
    mesh.publish_service(build::service(
        "waypoint",
        &["10.9.0.103"],
        &[(15008, 15008)],
    ));
    let began = tokio::time::Instant::now();
    let mut waits = client.connect(VIP.parse().unwrap()).await.unwrap();
    read_until_end(&mut waits).await.unwrap_err();
    let waited = began.elapsed();
    assert!((5..10).contains(&waited.as_secs()), "{waited:?}");

    // A pod of the waypoint starts while another connection waits. It serves the application's port
    // itself.
    let mut waits = client.connect(VIP.parse().unwrap()).await.unwrap();
    assert!(
        timeout(Duration::from_millis(300), read_line(&mut waits))
            .await
            .is_err()
    );
    let mut waypoint = mesh.pod("waypoint", "10.9.0.3").await;
    let mut record = build::workload("waypoint", &["10.9.0.3"]);
    record.application_tunnel = Some(ambit_model::AppTunnel {
        protocol: ambit_model::AppTunnelProtocol::Proxy,
        port: Some(15088),
    });
    let listener = waypoint.listen(15088);
    mesh.publish_workload(build::make_endpoint(
        record,
        "ns/waypoint.ns.svc.cluster.local",
        &[(15008, 15008)],
    ));
    mesh.capture(1, &mut waypoint);
    let (_arrived, _) = timeout(OPERATION_TIMEOUT, listener.accept())
        .await
        .unwrap()
        .unwrap();
}
