//! Tests destinations with a waypoint: connections pass it, with the principal of the caller and the original
//! destination, and never bypass it.

use std::net::SocketAddr;

use ambit_codec::ProxyHeader;
use ambit_model::{
    AppTunnel, AppTunnelProtocol, GatewayAddress, GatewayDestination, NamespacedHostname, Workload,
};
use ambit_testkit::build;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::fixture::{Mesh, OPERATION_TIMEOUT, PodHost, read_line, read_until_end};

const HOSTNAME: &str = "waypoint.ns.svc.cluster.local";
/// Port on which the waypoint's own process listens, behind its node proxy.
const PROCESS_PORT: u16 = 15088;

fn address_by_hostname() -> GatewayAddress {
    GatewayAddress {
        destination: GatewayDestination::Hostname(NamespacedHostname::new("ns", HOSTNAME)),
        hbone_mtls_port: 15008,
    }
}

fn address_by_ip() -> GatewayAddress {
    GatewayAddress {
        destination: GatewayDestination::Address(build::network_address("10.9.0.103")),
        ..address_by_hostname()
    }
}

/// Client, server, and a waypoint behind its own node proxy, on two nodes.
struct WaypointTestbed {
    mesh: Mesh,
    client: PodHost,
    waypoint: PodHost,
    server: TcpListener,
}

async fn set_up() -> WaypointTestbed {
    let mut mesh = Mesh::new().await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let server = mesh
        .captured_pod(1, "server", "10.9.0.2")
        .await
        .listen(8080);
    let mut waypoint = mesh.pod("waypoint", "10.9.0.3").await;
    let record = build::workload("waypoint", &["10.9.0.3"]);
    let mut record = build::make_endpoint(record, &format!("ns/{HOSTNAME}"), &[(15008, 15008)]);
    record.application_tunnel = Some(AppTunnel {
        protocol: AppTunnelProtocol::Proxy,
        port: Some(PROCESS_PORT),
    });
    mesh.publish_workload(record);
    mesh.publish_service(build::service(
        "waypoint",
        &["10.9.0.103"],
        &[(15008, 15008)],
    ));
    mesh.capture(1, &mut waypoint);
    WaypointTestbed {
        mesh,
        client,
        waypoint,
        server,
    }
}

fn server_record() -> Workload {
    let record = build::workload("server", &["10.9.0.2"]);
    build::make_endpoint(record, "ns/server.ns.svc.cluster.local", &[(80, 8080)])
}

/// Reads the PROXY protocol header that the waypoint receives before the connection's first byte.
async fn read_proxy_header(stream: &mut TcpStream) -> ProxyHeader {
    let mut bytes = Vec::new();
    loop {
        bytes.push(
            tokio::time::timeout(OPERATION_TIMEOUT, stream.read_u8())
                .await
                .unwrap()
                .unwrap(),
        );
        if let Ok((header, _)) = ProxyHeader::parse(&bytes) {
            return header;
        }
    }
}

async fn assert_reaches_waypoint(scene: &WaypointTestbed, dialled: &str) {
    let listener = scene.waypoint.listen(PROCESS_PORT);
    let dialled: SocketAddr = dialled.parse().unwrap();
    let mut client = scene.client.connect(dialled).await.unwrap();
    let (mut arrived, _) = tokio::time::timeout(OPERATION_TIMEOUT, listener.accept())
        .await
        .unwrap()
        .unwrap();
    let header = read_proxy_header(&mut arrived).await;
    assert_eq!(header.source.ip(), scene.client.ip);
    assert_eq!(header.destination, dialled);
    let caller = build::identity("ns", "client").to_string();
    assert_eq!(header.identity, Some(caller));
    arrived.write_all(b"from the waypoint\n").await.unwrap();
    assert_eq!(read_line(&mut client).await.unwrap(), "from the waypoint");
}

#[tokio::test]
async fn services_waypoint_gets_caller_and_destination() {
    let scene = set_up().await;
    for waypoint in [address_by_hostname(), address_by_ip()] {
        let mut service = build::service("server", &["10.9.0.102"], &[(80, 8080)]);
        service.waypoint = Some(waypoint);
        scene.mesh.publish_service(service);
        scene.mesh.publish_workload(server_record());
        assert_reaches_waypoint(&scene, "10.9.0.102:80").await;
    }
}

#[tokio::test]
async fn pods_waypoint_gets_connections_to_the_pod() {
    let scene = set_up().await;
    scene.mesh.publish_workload(Workload {
        waypoint: Some(address_by_ip()),
        ..server_record()
    });
    assert_reaches_waypoint(&scene, "10.9.0.2:8080").await;
}

#[tokio::test]
async fn unresolved_waypoint_is_never_bypassed() {
    let scene = set_up().await;
    let mut missing = address_by_hostname();
    missing.destination = GatewayDestination::Hostname(NamespacedHostname::new("ns", "nowhere"));
    let mut service = build::service("server", &["10.9.0.102"], &[(80, 8080)]);
    service.waypoint = Some(missing.clone());
    scene.mesh.publish_service(service);
    scene.mesh.publish_workload(Workload {
        waypoint: Some(missing),
        ..server_record()
    });
    for dialled in ["10.9.0.102:80", "10.9.0.2:8080"] {
        // The rejection may be so fast that the client sees it while connecting.
        let connected = scene.client.connect(dialled.parse().unwrap()).await;
        let received = match connected {
            Ok(mut client) => read_until_end(&mut client).await.unwrap_or_default(),
            Err(_) => Vec::new(),
        };
        assert!(received.is_empty(), "{dialled}: {received:?}");
    }
    // No connection has reached the server: the first one that it accepts is this one, without a
    // waypoint.
    scene.mesh.publish_workload(server_record());
    scene
        .mesh
        .publish_service(build::service("server", &["10.9.0.102"], &[(80, 8080)]));
    let mut client = scene
        .client
        .connect("10.9.0.2:8080".parse().unwrap())
        .await
        .unwrap();
    client.write_all(b"direct\n").await.unwrap();
    let (mut arrived, _) = tokio::time::timeout(OPERATION_TIMEOUT, scene.server.accept())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(read_line(&mut arrived).await.unwrap(), "direct");
}
