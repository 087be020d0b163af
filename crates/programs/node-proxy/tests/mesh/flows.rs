//! Tests the paths of connections, and the client address that the server observes.

use std::net::SocketAddr;

use ambit_node_proxy::pod::Pod;
use ambit_proxy::state::MeshUpdate;
use ambit_testkit::build;
use tokio::io::AsyncWriteExt;

use crate::fixture::{Mesh, PodHost, read_line, read_until_end};

/// Connects to the echo server, and returns the client's address as the server observes it; checks that data passes in
/// both directions.
async fn observed_client_address(client: &PodHost, to: SocketAddr) -> String {
    let mut stream = client.connect(to).await.unwrap();
    let seen = read_line(&mut stream).await.unwrap();
    stream.write_all(b"hello").await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(read_until_end(&mut stream).await.unwrap(), b"hello");
    seen
}

#[tokio::test]
async fn tunnelled_server_sees_the_clients_address() {
    let mut mesh = Mesh::new().await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.2").await;
    server.serve_echo(8080);
    assert_eq!(
        observed_client_address(&client, SocketAddr::new(server.ip, 8080)).await,
        "10.9.0.1"
    );
    for (node, reporter) in [(0, "source"), (1, "destination")] {
        let metrics = mesh.nodes[node].metrics();
        let opened = metrics
            .lines()
            .find(|line| line.starts_with("istio_tcp_connections_opened_total"))
            .unwrap_or_else(|| panic!("no connection was counted: {metrics}"));
        for label in [
            format!("reporter=\"{reporter}\""),
            "connection_security_policy=\"mutual_tls\"".to_owned(),
            "source_workload=\"client\"".to_owned(),
            "destination_workload=\"server\"".to_owned(),
            "destination_principal=\"spiffe://cluster.local/ns/ns/sa/server\"".to_owned(),
        ] {
            assert!(opened.contains(&label), "{label} in {opened}");
        }
    }
}

#[tokio::test]
async fn pods_of_one_node_use_a_tunnel() {
    let mut mesh = Mesh::new().await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let server = mesh.captured_pod(0, "server", "10.9.0.2").await;
    server.serve_echo(8080);
    assert_eq!(
        observed_client_address(&client, SocketAddr::new(server.ip, 8080)).await,
        "10.9.0.1"
    );
    assert!(mesh.nodes[0].metrics().contains("mutual_tls"));
}

#[tokio::test]
async fn only_known_pods_of_the_node_count_as_local() {
    let of_node = |name: &str, ip: &str, node: &str| ambit_model::Workload {
        node: node.into(),
        ..build::workload(name, &[ip])
    };
    for (own, near) in [("node-1", true), ("", false)] {
        let mut mesh = Mesh::with_env(&[("NODE_NAME", own)]).await;
        let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
        let pod = client.pod.as_ref().unwrap();
        let is_near = |ip: &str| pod.is_on_this_node(ip.parse().unwrap());
        mesh.publish_workload(of_node("here", "10.9.0.2", "node-1"));
        mesh.publish_workload(of_node("there", "10.9.0.3", "node-2"));
        mesh.publish_workload(of_node("anywhere", "10.9.0.4", ""));
        assert_eq!(is_near("10.9.0.2"), near);
        assert!(!is_near("10.9.0.3"));
        assert!(!is_near("10.9.0.4"));
        assert!(!is_near("10.9.0.5"), "nobody's");
    }
}

#[tokio::test]
async fn proxys_own_pod_serves_through_a_tunnel() {
    let own = [
        ("POD_NAME", "proxy"),
        ("POD_NAMESPACE", "ns"),
        ("SERVICE_ACCOUNT", "proxy"),
        ("INSTANCE_IP", "10.9.0.2"),
    ];
    let mut mesh = Mesh::with_env(&own).await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let proxy = mesh.pod("proxy", "10.9.0.2").await;
    let metrics = SocketAddr::new(proxy.ip, 15020);
    proxy.serve_echo(metrics.port());
    let node = &mesh.nodes[1];
    let (served, listeners) =
        Pod::open_own(&node.proxy, proxy.netns().clone(), node.workers.count()).unwrap();
    served.serve(&node.workers, listeners);
    mesh.publish(MeshUpdate::Workload(Box::new(build::workload(
        "proxy",
        &["10.9.0.2"],
    ))));
    // The proxy's own pod responds, under its own address.
    assert_eq!(observed_client_address(&client, metrics).await, "10.9.0.2");
    assert!(
        mesh.nodes[1]
            .metrics()
            .contains("spiffe://cluster.local/ns/ns/sa/proxy")
    );
    // A client without a tunnel is served as by any pod that is not captured.
    let outside = mesh.pod("outside", "10.9.0.3").await;
    assert_eq!(observed_client_address(&outside, metrics).await, "10.9.0.3");
}

#[tokio::test]
async fn tunnels_carry_ipv6() {
    let mut mesh = Mesh::new().await;
    let client = mesh.captured_pod(0, "client", "fd09::1").await;
    let server = mesh.captured_pod(1, "server", "fd09::2").await;
    server.serve_echo(8080);
    assert_eq!(
        observed_client_address(&client, SocketAddr::new(server.ip, 8080)).await,
        "fd09::1"
    );
    assert!(mesh.nodes[0].metrics().contains("mutual_tls"));
}

#[tokio::test]
async fn outside_client_reaches_a_captured_pod_in_plaintext() {
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("outside", "10.9.0.1").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.2").await;
    server.serve_echo(8080);
    assert_eq!(
        observed_client_address(&client, SocketAddr::new(server.ip, 8080)).await,
        "10.9.0.1"
    );
    let metrics = mesh.nodes[1].metrics();
    assert!(
        metrics.contains("connection_security_policy=\"unknown\""),
        "{metrics}"
    );
    assert!(!metrics.contains("mutual_tls"), "{metrics}");
}

#[tokio::test]
async fn captured_pod_reaches_an_outside_server_in_plaintext() {
    let mut mesh = Mesh::new().await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let unknown = mesh.pod("unknown", "10.9.0.2").await;
    let known = mesh.pod("known", "10.9.0.3").await;
    mesh.publish_workload(build::workload_outside_mesh("known", &["10.9.0.3"]));
    for server in [&unknown, &known] {
        server.serve_echo(80);
        assert_eq!(
            observed_client_address(&client, SocketAddr::new(server.ip, 80)).await,
            "10.9.0.1"
        );
    }
    assert!(!mesh.nodes[0].metrics().contains("mutual_tls"));
}

#[tokio::test]
async fn connections_reach_healthy_endpoints_on_their_target_ports() {
    let mut mesh = Mesh::new().await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let name = "ns/echo.ns.svc.cluster.local";
    mesh.publish_service(build::service("echo", &["/10.96.0.9"], &[(80, 0)]));
    let mut servers = Vec::new();
    for (server, ip, port) in [("a", "10.9.0.11", 8001), ("b", "10.9.0.12", 8002)] {
        let pod = mesh.captured_pod(1, server, ip).await;
        let workload = build::make_endpoint(build::workload(server, &[ip]), name, &[(80, port)]);
        mesh.publish_workload(workload);
        pod.serve_echo(port);
        servers.push(pod);
    }
    let mut sick = build::make_endpoint(build::workload("c", &["10.9.0.13"]), name, &[(80, 1)]);
    sick.status = ambit_model::WorkloadStatus::Unhealthy;
    mesh.publish_workload(sick);
    // The VIP is on no wire: only the proxy knows its endpoint.
    client
        .host
        .add_route("10.96.0.0/16".parse().unwrap(), None, "eth0")
        .await
        .unwrap();
    for _ in 0..30 {
        assert_eq!(
            observed_client_address(&client, "10.96.0.9:80".parse().unwrap()).await,
            "10.9.0.1"
        );
    }
    let metrics = mesh.nodes[0].metrics();
    for server in ["a", "b"] {
        let label = format!("destination_workload=\"{server}\"");
        assert!(
            metrics.contains(&label),
            "no connection reached {server}: {metrics}"
        );
    }
    assert!(
        metrics.contains("destination_service=\"echo.ns.svc.cluster.local\""),
        "{metrics}"
    );
}

#[tokio::test]
async fn service_without_endpoints_fails_at_once() {
    let mut mesh = Mesh::new().await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    mesh.publish_service(build::service("empty", &["/10.9.0.99"], &[(80, 80)]));
    // A reset may be so fast that connecting itself reports it.
    if let Ok(mut stream) = client.connect("10.9.0.99:80".parse().unwrap()).await {
        assert!(
            read_until_end(&mut stream)
                .await
                .unwrap_or_default()
                .is_empty()
        );
    }
}

#[tokio::test]
async fn connections_share_a_tunnel_connection() {
    let mut mesh = Mesh::with_env(&[("POOL_MAX_STREAMS_PER_CONNECTION", "100")]).await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.2").await;
    server.serve_echo(8080);
    let mut open = Vec::new();
    for _ in 0..40 {
        let mut stream = client
            .connect(SocketAddr::new(server.ip, 8080))
            .await
            .unwrap();
        read_line(&mut stream).await.unwrap();
        open.push(stream);
    }
    let tunnels = std::process::id();
    let path = format!("/proc/{tunnels}/task");
    // Counted at the server: established connections to 15008 in its namespace.
    let tcp = server
        .host
        .run(|| std::fs::read_to_string("/proc/thread-self/net/tcp6"))
        .unwrap();
    let text = tcp.unwrap_or_else(|error| panic!("{path}: {error}"));
    let established = text
        .lines()
        .filter(|row| {
            let fields: Vec<&str> = row.split_ascii_whitespace().collect();
            fields.get(1).is_some_and(|local| local.ends_with(":3AA0"))
                && fields.get(3).is_some_and(|state| *state == "01")
        })
        .count();
    assert!(
        (1..=2).contains(&established),
        "one a worker, not {established}"
    );
}

#[tokio::test]
async fn first_connection_does_not_wait_for_the_control_plane() {
    let mut mesh = Mesh::new().await;
    let mut client = mesh.pod("client", "10.9.0.1").await;
    mesh.capture(0, &mut client);
    let server = mesh.captured_pod(1, "server", "10.9.0.2").await;
    server.serve_echo(8080);
    let began = std::time::Instant::now();
    assert_eq!(
        observed_client_address(&client, SocketAddr::new(server.ip, 8080)).await,
        "10.9.0.1"
    );
    assert!(began.elapsed() < std::time::Duration::from_secs(4));
}

#[tokio::test]
async fn connection_to_a_pod_waits_for_its_policies() {
    let mut mesh = Mesh::new().await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let mut server = mesh.pod("server", "10.9.0.2").await;
    mesh.capture(1, &mut server);
    let known = MeshUpdate::Workload(Box::new(build::workload("server", &["10.9.0.2"])));
    mesh.nodes[0].publish(known.clone());
    server.serve_echo(8080);
    let mut stream = client
        .connect(SocketAddr::new(server.ip, 8080))
        .await
        .unwrap();
    let node = &mesh.nodes[1];
    ambit_testkit::wait_until("the tunnel waits at the server's side", || {
        node.proxy.metrics.traffic().is_empty()
    })
    .await;
    node.publish(known);
    assert_eq!(read_line(&mut stream).await.unwrap(), "10.9.0.1");
}
