//! Tests pods that are reached only through their waypoint: which connections are redirected to it, with which header
//! lines, and which fail.

use std::{net::SocketAddr, sync::Arc};

use ambit_hbone::{
    IncomingRequest, Settings, Tunnel, TunnelError, client, relay_tunnels, server, tls,
};
use ambit_model::{
    Action, EndpointWaypoint, GatewayAddress, GatewayDestination, Identity, Match,
    NamespacedHostname, Workload,
};
use ambit_proxy::state::MeshUpdate;
use ambit_sys::socket::{self, OutboundSpec};
use ambit_testkit::{Pki, build, wait_until};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
    time::timeout,
};

use crate::fixture::{Mesh, OPERATION_TIMEOUT, PodHost, read_line, read_until_end};

const HOSTNAME: &str = "waypoint.ns.svc.cluster.local";
const ORIGINAL_PEER: HeaderName = HeaderName::from_static("x-ambit-original-peer");
const SERVER: &str = "10.9.0.2:8080";
const SERVICE: &str = "10.9.0.102:80";

fn waypoint_identity() -> Identity {
    build::identity("ns", "waypoint")
}

/// Replica of the waypoint: an uncaptured pod whose tunnels the test answers.
struct WaypointReplica {
    host: PodHost,
    pki: Arc<Pki>,
    requests: mpsc::UnboundedReceiver<ConnectRequest>,
}

/// CONNECT request that reached a replica.
struct ConnectRequest {
    incoming: IncomingRequest,
    identity: Identity,
    peer: SocketAddr,
}

impl ConnectRequest {
    fn header(&self, name: &str) -> Option<&str> {
        self.incoming.headers().get(name)?.to_str().ok()
    }

    fn authority(&self) -> String {
        self.incoming.target().unwrap().to_string()
    }
}

impl WaypointReplica {
    fn serve(host: PodHost, pki: Arc<Pki>) -> Self {
        let (asked_for, asked) = mpsc::unbounded_channel();
        let (listener, its_pki) = (host.listen(15008), pki.clone());
        ambit_rt::spawn("waypoint", async move {
            while let Ok((stream, peer)) = listener.accept().await {
                let (pki, asked_for) = (its_pki.clone(), asked_for.clone());
                ambit_rt::spawn("waypoint connection", async move {
                    let config = pki.cert(&waypoint_identity()).server_config().unwrap();
                    let Ok(stream) = tls::accept(stream, config, OPERATION_TIMEOUT).await else {
                        return;
                    };
                    let identity = ambit_tls::peer_identity(tls::peer_certificates(&stream));
                    let identity = identity.unwrap();
                    let (settings, never) = (Settings::default(), std::future::pending());
                    let serving = server::serve(stream, &settings, never, |incoming| {
                        let identity = identity.clone();
                        // The test may have ended, and dropped the receiver.
                        let _over = asked_for.send(ConnectRequest {
                            incoming,
                            identity,
                            peer: ambit_model::canonical_socket_address(peer),
                        });
                    });
                    let _ended = serving.await;
                });
            }
        });
        Self {
            host,
            pki,
            requests: asked,
        }
    }

    async fn next(&mut self) -> ConnectRequest {
        timeout(OPERATION_TIMEOUT, self.requests.recv())
            .await
            .unwrap()
            .unwrap()
    }

    /// Returns the next CONNECT request, and checks that it is a hairpin from the pod `server` that names this client.
    async fn next_hairpin(
        &mut self,
        server: &PodHost,
        peer: Option<&str>,
        client: &PodHost,
    ) -> ConnectRequest {
        let asked = self.next().await;
        assert_eq!(asked.identity, build::identity("ns", &server.name));
        assert_eq!(asked.peer.ip(), server.ip);
        assert_eq!(asked.authority(), SERVER);
        let peer = peer.map(|peer| build::identity("ns", peer).to_string());
        let peer = peer.unwrap_or_else(|| "none".to_owned());
        assert_eq!(asked.header("x-ambit-original-peer"), Some(&*peer));
        let forwarded = asked.header("forwarded").unwrap();
        assert!(
            forwarded.starts_with(&format!("for=\"{}:", client.ip)),
            "{forwarded}"
        );
        assert!(!forwarded.ends_with(":0\""), "{forwarded}");
        asked
    }

    /// Forwards a CONNECT request to the pod, as a waypoint does.
    async fn deliver(&self, asked: ConnectRequest, to: &PodHost) {
        let connection = tunnel_as(&self.pki, &waypoint_identity(), &self.host, to).await;
        let authority = Uri::try_from(asked.authority()).unwrap();
        let (mut far, _) = connection
            .open_tunnel(authority, HeaderMap::new())
            .await
            .unwrap();
        let mut near = asked.incoming.accept(HeaderMap::new()).unwrap();
        ambit_rt::spawn("waypoint tunnel", async move {
            let _connection = connection;
            let _ended = relay_tunnels(&mut near, &mut far, ()).await;
        });
    }

    fn assert_no_request(&mut self) {
        assert!(self.requests.try_recv().is_err());
    }
}

/// Opens an HBONE connection to the pod with this certificate, as another proxy would.
async fn tunnel_as(
    pki: &Arc<Pki>,
    me: &Identity,
    from: &PodHost,
    to: &PodHost,
) -> client::ClientConnection {
    let expected = [build::identity("ns", &to.name)];
    let config = pki.cert(me).client_config(&expected).unwrap();
    let at = SocketAddr::new(to.ip, 15008);
    let spec = OutboundSpec {
        mark: Some(0x539),
        ..Default::default()
    };
    let socket = socket::outbound(Some(from.netns()), at, &spec).unwrap();
    let stream = tls::connect(socket.connect(at).await.unwrap(), config, OPERATION_TIMEOUT);
    let stream = stream.await.unwrap();
    let (connection, driver) = client::handshake(stream, &Settings::default())
        .await
        .unwrap();
    ambit_rt::spawn("driver", driver.run(|| {}));
    connection
}

/// Sends a CONNECT request for the server; returns the tunnel, or the status of the rejection.
async fn send_connect(
    connection: &client::ClientConnection,
    headers: HeaderMap,
) -> Result<Tunnel, StatusCode> {
    let answer = connection.open_tunnel(Uri::from_static(SERVER), headers);
    match timeout(OPERATION_TIMEOUT, answer).await.unwrap() {
        Ok((tunnel, _)) => Ok(tunnel),
        Err(TunnelError::Status(status) | TunnelError::Denied { status, .. }) => Err(status),
        Err(error) => panic!("no answer: {error}"),
    }
}

fn endpoint_waypoint(enforce: bool) -> EndpointWaypoint {
    EndpointWaypoint {
        waypoint: GatewayAddress {
            destination: GatewayDestination::Hostname(NamespacedHostname::new("ns", HOSTNAME)),
            hbone_mtls_port: 15008,
        },
        identities: vec![waypoint_identity()],
        enforce,
        refuse: false,
        for_services: true,
        rules: None,
    }
}

fn direct_record() -> Workload {
    let record = build::workload("server", &["10.9.0.2"]);
    build::make_endpoint(record, "ns/server.ns.svc.cluster.local", &[(80, 8080)])
}

fn server_record() -> Workload {
    Workload {
        endpoint_waypoint: Some(endpoint_waypoint(true)),
        ..direct_record()
    }
}

/// Captured client and server on two nodes, a client outside of the mesh, and replicas of a waypoint.
struct WaypointTestbed {
    mesh: Mesh,
    client: PodHost,
    server: PodHost,
    outside_client: PodHost,
    replicas: Vec<WaypointReplica>,
}

impl WaypointTestbed {
    async fn new(replicas: &[&str]) -> Self {
        Self::with_env(replicas, &[]).await
    }

    async fn with_env(replicas: &[&str], env: &[(&str, &str)]) -> Self {
        let mut mesh = Mesh::with_env(env).await;
        let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
        let server = mesh.captured_pod(1, "server", "10.9.0.2").await;
        let outside = mesh.pod("outside", "10.9.0.9").await;
        server.serve_echo(8080);
        mesh.publish_service(build::service("server", &["10.9.0.102"], &[(80, 8080)]));
        mesh.publish_service(build::service(
            "waypoint",
            &["10.9.0.103"],
            &[(15008, 15008)],
        ));
        let mut scene = Self {
            mesh,
            client,
            server,
            outside_client: outside,
            replicas: Vec::new(),
        };
        for ip in replicas {
            let host = scene.waypoint_pod(ip).await;
            let pki = scene.mesh.pki.clone();
            scene.replicas.push(WaypointReplica::serve(host, pki));
        }
        scene
    }

    /// Adds a pod of the waypoint that accepts no connections.
    async fn waypoint_pod(&mut self, ip: &str) -> PodHost {
        let name = format!("waypoint-{}", ip.rsplit('.').next().unwrap());
        let host = self.mesh.pod(&name, ip).await;
        let record = Workload {
            service_account: "waypoint".into(),
            native_tunnel: true,
            ..build::workload(&name, &[ip])
        };
        let record = build::make_endpoint(record, &format!("ns/{HOSTNAME}"), &[(15008, 15008)]);
        self.mesh.publish_workload(record);
        host
    }

    /// Makes the waypoint required at the server's node, while the client's node does not know the change yet.
    fn enforce_at_server(&self) {
        let record = MeshUpdate::Workload(Box::new(server_record()));
        self.mesh.nodes[1].publish(record);
        self.mesh.nodes[0].publish(MeshUpdate::Workload(Box::new(direct_record())));
    }

    /// Makes the waypoint required at all nodes.
    fn enforce_for_all_identities(&self) {
        self.mesh.publish_workload(server_record());
    }

    async fn assert_fails(&self, from: &PodHost, to: &str) {
        let received = match from.connect(to.parse().unwrap()).await {
            Ok(mut stream) => read_until_end(&mut stream).await.unwrap_or_default(),
            Err(_refused) => Vec::new(),
        };
        assert!(received.is_empty(), "{received:?}");
    }
}

/// Exchanges data with the echo server, which must report the waypoint as its client, until both sides close.
async fn exchange_lines(mut stream: TcpStream, waypoint: &WaypointReplica) {
    assert_eq!(
        read_line(&mut stream).await.unwrap(),
        waypoint.host.ip.to_string()
    );
    stream.write_all(b"hello\n").await.unwrap();
    assert_eq!(read_line(&mut stream).await.unwrap(), "hello");
    stream.shutdown().await.unwrap();
    assert_eq!(read_until_end(&mut stream).await.unwrap(), b"");
}

fn socket_addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[tokio::test]
async fn bypassing_connections_are_forwarded_with_their_peer() {
    let mut scene = WaypointTestbed::new(&["10.9.0.3"]).await;
    scene.enforce_at_server();
    let WaypointTestbed {
        mesh,
        client,
        server,
        outside_client: outside,
        replicas,
    } = &mut scene;
    let waypoint = &mut replicas[0];
    // A client without a tunnel.
    let plain = outside.connect(socket_addr(SERVER)).await.unwrap();
    let asked = waypoint.next_hairpin(server, None, outside).await;
    assert_eq!(asked.header("baggage"), None);
    waypoint.deliver(asked, server).await;
    exchange_lines(plain, waypoint).await;
    // A node proxy whose state is a moment old.
    let tunnelled = client.connect(socket_addr(SERVER)).await.unwrap();
    let asked = waypoint.next_hairpin(server, Some("client"), client).await;
    assert!(asked.header("baggage").unwrap().contains("client"));
    waypoint.deliver(asked, server).await;
    exchange_lines(tunnelled, waypoint).await;
    // A client with its own proxy.
    let connection = tunnel_as(
        &mesh.pki,
        &build::identity("ns", "sidecar"),
        outside,
        server,
    )
    .await;
    let asking = send_connect(&connection, HeaderMap::new());
    let delivering = async {
        let asked = waypoint
            .next_hairpin(server, Some("sidecar"), outside)
            .await;
        waypoint.deliver(asked, server).await;
    };
    let (tunnel, ()) = tokio::join!(asking, delivering);
    let mut io = tunnel.unwrap().into_io();
    io.write_all(b"hello\n").await.unwrap();
    io.shutdown().await.unwrap();
    let mut received = String::new();
    timeout(OPERATION_TIMEOUT, io.read_to_string(&mut received))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(received, format!("{}\nhello\n", waypoint.host.ip));
    // Each counts once as a connection to the pod: when it is delivered.
    let counted = |family: &str, labels: &str| {
        let metrics = mesh.nodes[1].metrics();
        let samples = metrics.lines().filter(|line| {
            line.starts_with(family) && line.contains(labels) && !line.starts_with('#')
        });
        let values = samples.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
        values.sum::<u64>()
    };
    assert_eq!(counted("ambit_connections_led_to_waypoint_total", ""), 3);
    let opened = "istio_tcp_connections_opened_total";
    assert_eq!(counted(opened, "reporter=\"destination\""), 3);
}

#[tokio::test]
async fn peer_authentication_precedes_policies_on_deliveries() {
    let mut scene = WaypointTestbed::new(&["10.9.0.3"]).await;
    let mut record = server_record();
    let mut strict = build::policy(
        "istio_converted_static_strict",
        Action::Deny,
        build::from_unauthenticated(),
    );
    build::select_workload(&mut record, &mut strict);
    let only = build::from_principal("cluster.local/ns/ns/sa/waypoint");
    scene.mesh.publish(MeshUpdate::Policy(strict));
    scene.mesh.publish(MeshUpdate::Policy(build::policy(
        "only",
        Action::Allow,
        only,
    )));
    scene.mesh.nodes[1].publish(MeshUpdate::Workload(Box::new(record)));
    scene.assert_fails(&scene.outside_client, SERVER).await;
    let metrics = scene.mesh.nodes[1].metrics();
    assert!(metrics.contains("response_flags=\"DENY\""), "{metrics}");
    let waypoint = &mut scene.replicas[0];
    waypoint.assert_no_request();
    let tunnelled = scene.client.connect(socket_addr(SERVER)).await.unwrap();
    let (server, client) = (&scene.server, &scene.client);
    let asked = waypoint.next_hairpin(server, Some("client"), client).await;
    waypoint.deliver(asked, server).await;
    exchange_lines(tunnelled, waypoint).await;
    // Connections from the waypoint are authorized as the waypoint's.
    let no = build::policy(
        "only",
        Action::Deny,
        build::from_principal("cluster.local/ns/ns/sa/waypoint"),
    );
    scene.mesh.publish(MeshUpdate::Policy(no));
    let from = &waypoint.host;
    let connection = tunnel_as(&waypoint.pki, &waypoint_identity(), from, server).await;
    let refused = send_connect(&connection, HeaderMap::new()).await;
    assert_eq!(refused.unwrap_err(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn only_the_waypoint_learns_the_denying_policy() {
    let mut scene = WaypointTestbed::new(&["10.9.0.3"]).await;
    let of_client = build::from_principal("cluster.local/ns/ns/sa/client");
    let policy = build::policy("from-client", Action::Allow, of_client);
    scene.mesh.publish(MeshUpdate::Policy(policy));
    scene.enforce_at_server();
    let waypoint = &mut scene.replicas[0];
    let from = &waypoint.host;
    let connection = tunnel_as(&waypoint.pki, &waypoint_identity(), from, &scene.server).await;
    let refused = connection.open_tunnel(Uri::from_static(SERVER), HeaderMap::new());
    let refused = timeout(OPERATION_TIMEOUT, refused)
        .await
        .unwrap()
        .unwrap_err();
    let policies = match refused {
        TunnelError::Denied { status, policies } if status == StatusCode::UNAUTHORIZED => policies,
        error => panic!("{error}"),
    };
    assert_eq!(policies, "ns/from-client");
    // Other callers get only a status.
    let unattached = MeshUpdate::Workload(Box::new(direct_record()));
    scene.mesh.nodes[1].publish(unattached);
    let sidecar = build::identity("ns", "sidecar");
    for me in [&waypoint_identity(), &sidecar] {
        let connection = tunnel_as(&scene.mesh.pki, me, &scene.outside_client, &scene.server).await;
        let refused = connection.open_tunnel(Uri::from_static(SERVER), HeaderMap::new());
        let refused = timeout(OPERATION_TIMEOUT, refused).await.unwrap();
        let status = StatusCode::UNAUTHORIZED;
        assert!(matches!(refused, Err(TunnelError::Status(got)) if got == status));
    }
}

#[tokio::test]
async fn policy_changes_spare_connections_via_the_waypoint() {
    let mut scene = WaypointTestbed::new(&["10.9.0.3"]).await;
    scene.enforce_at_server();
    let (server, client) = (&scene.server, &scene.client);
    let waypoint = &mut scene.replicas[0];
    let mut stream = client.connect(socket_addr(SERVER)).await.unwrap();
    let asked = waypoint.next_hairpin(server, Some("client"), client).await;
    waypoint.deliver(asked, server).await;
    read_line(&mut stream).await.unwrap();
    let of_client = build::from_principal("cluster.local/ns/ns/sa/client");
    scene.mesh.publish(MeshUpdate::Policy(build::policy(
        "no-client",
        Action::Deny,
        of_client,
    )));
    stream.write_all(b"spared\n").await.unwrap();
    assert_eq!(read_line(&mut stream).await.unwrap(), "spared");
    // PeerAuthentication is about the real peer.
    let mut record = server_record();
    let everything = Match {
        destination_ports: vec![8080],
        ..Match::default()
    };
    let mut odd = build::policy(
        "converted_peer_authentication_odd",
        Action::Deny,
        everything,
    );
    build::select_workload(&mut record, &mut odd);
    scene.mesh.publish(MeshUpdate::Policy(odd));
    scene.mesh.nodes[1].publish(MeshUpdate::Workload(Box::new(record)));
    assert!(
        read_until_end(&mut stream)
            .await
            .unwrap_or_default()
            .is_empty()
    );
}

#[tokio::test]
async fn unusable_waypoint_is_never_bypassed() {
    let mut scene = WaypointTestbed::new(&[]).await;
    scene.enforce_at_server();
    let pki = scene.mesh.pki.clone();
    let sidecar = tunnel_as(
        &pki,
        &build::identity("ns", "sidecar"),
        &scene.outside_client,
        &scene.server,
    )
    .await;
    let unavailable = StatusCode::SERVICE_UNAVAILABLE;
    // No pod of the waypoint exists.
    assert_eq!(
        send_connect(&sidecar, HeaderMap::new()).await.unwrap_err(),
        unavailable
    );
    scene.assert_fails(&scene.outside_client, SERVER).await;
    // No process listens.
    let host = scene.waypoint_pod("10.9.0.3").await;
    assert_eq!(
        send_connect(&sidecar, HeaderMap::new()).await.unwrap_err(),
        unavailable
    );
    scene.assert_fails(&scene.outside_client, SERVER).await;
    scene.assert_fails(&scene.client, SERVER).await;
    let metrics = scene.mesh.nodes[1].metrics();
    assert!(metrics.contains("response_flags=\"CONNECT\""), "{metrics}");
    // The waypoint rejects the tunnel.
    let mut waypoint = WaypointReplica::serve(host, pki);
    let refusing = async { waypoint.next().await.incoming.refuse(StatusCode::FORBIDDEN) };
    let (refused, ()) = tokio::join!(send_connect(&sidecar, HeaderMap::new()), refusing);
    assert_eq!(refused.unwrap_err(), StatusCode::FORBIDDEN);
    // The same for clients that know of the waypoint.
    scene.enforce_for_all_identities();
    for dialled in [SERVER, SERVICE] {
        let refusing = async { waypoint.next().await.incoming.refuse(StatusCode::FORBIDDEN) };
        tokio::join!(scene.assert_fails(&scene.client, dialled), refusing);
    }
    waypoint.assert_no_request();
}

#[tokio::test]
async fn pod_that_calls_its_own_service_goes_through_the_waypoint() {
    let mut scene = WaypointTestbed::new(&["10.9.0.3"]).await;
    scene.enforce_for_all_identities();
    let waypoint = &mut scene.replicas[0];
    let stream = scene.server.connect(socket_addr(SERVICE)).await.unwrap();
    let asked = waypoint.next().await;
    assert_eq!(asked.identity, build::identity("ns", "server"));
    assert_eq!(
        (
            asked.authority().as_str(),
            asked.header("x-ambit-original-peer")
        ),
        (SERVICE, None)
    );
    let near = asked.incoming.accept(HeaderMap::new()).unwrap();
    let connection = tunnel_as(
        &waypoint.pki,
        &waypoint_identity(),
        &waypoint.host,
        &scene.server,
    )
    .await;
    let mut far = send_connect(&connection, HeaderMap::new()).await.unwrap();
    ambit_rt::spawn("waypoint tunnel", async move {
        let mut near = near;
        let _ended = relay_tunnels(&mut near, &mut far, ()).await;
    });
    exchange_lines(stream, waypoint).await;
}

#[tokio::test]
async fn tunnels_of_another_pods_waypoint_are_not_forwarded() {
    let mut scene = WaypointTestbed::new(&["10.9.0.3"]).await;
    scene.enforce_at_server();
    let pki = &scene.mesh.pki;
    let other = build::identity("ns", "other");
    let connection = tunnel_as(pki, &other, &scene.outside_client, &scene.server).await;
    let mut headers = HeaderMap::new();
    headers.insert(ORIGINAL_PEER, HeaderValue::from_static("none"));
    let refused = send_connect(&connection, headers).await.unwrap_err();
    assert_eq!(refused, StatusCode::LOOP_DETECTED);
    scene.replicas[0].assert_no_request();
}

#[tokio::test]
async fn captured_pod_with_the_waypoints_account_passes_it() {
    let mut scene = WaypointTestbed::new(&["10.9.0.3"]).await;
    let accounted = scene.mesh.captured_pod(0, "waypoint", "10.9.0.7").await;
    let waypoint = &mut scene.replicas[0];
    // Its node does not know of the waypoint, the server's node does.
    scene.mesh.nodes[1].publish(MeshUpdate::Workload(Box::new(server_record())));
    let stream = accounted.connect(socket_addr(SERVER)).await.unwrap();
    let asked = waypoint
        .next_hairpin(&scene.server, Some("waypoint"), &accounted)
        .await;
    waypoint.deliver(asked, &scene.server).await;
    exchange_lines(stream, waypoint).await;
    // Both nodes know of it.
    scene.mesh.publish_workload(server_record());
    let stream = accounted.connect(socket_addr(SERVER)).await.unwrap();
    let asked = waypoint.next().await;
    assert_eq!(
        (asked.identity.clone(), asked.peer.ip()),
        (waypoint_identity(), accounted.ip)
    );
    waypoint.deliver(asked, &scene.server).await;
    exchange_lines(stream, waypoint).await;
}

#[tokio::test]
async fn resets_pass_the_waypoint_in_both_directions() {
    let mut scene = WaypointTestbed::new(&["10.9.0.3"]).await;
    scene.enforce_at_server();
    let (server, client) = (&scene.server, &scene.client);
    let waypoint = &mut scene.replicas[0];
    let mut stream = client.connect(socket_addr(SERVER)).await.unwrap();
    let asked = waypoint.next_hairpin(server, Some("client"), client).await;
    let mut tunnel = asked.incoming.accept(HeaderMap::new()).unwrap();
    stream.write_all(b"bytes").await.unwrap();
    tunnel.reset();
    let broken = read_until_end(&mut stream).await.unwrap_err();
    assert_eq!(broken.kind(), std::io::ErrorKind::ConnectionReset);

    let stream = client.connect(socket_addr(SERVER)).await.unwrap();
    let asked = waypoint.next_hairpin(server, Some("client"), client).await;
    let mut io = asked.incoming.accept(HeaderMap::new()).unwrap().into_io();
    stream.set_zero_linger().unwrap();
    drop(stream);
    let broken = timeout(OPERATION_TIMEOUT, io.read_to_end(&mut Vec::new()))
        .await
        .unwrap();
    assert!(broken.is_err(), "{broken:?}");
}

#[tokio::test]
async fn waypoint_without_original_peer_support_gets_no_foreign_connections() {
    let mut scene = WaypointTestbed::new(&["10.9.0.3"]).await;
    let foreign = Workload {
        endpoint_waypoint: Some(EndpointWaypoint {
            refuse: true,
            for_services: false,
            ..endpoint_waypoint(true)
        }),
        ..direct_record()
    };
    // Only the server's node knows of it.
    scene.mesh.nodes[1].publish(MeshUpdate::Workload(Box::new(foreign.clone())));
    scene.mesh.nodes[0].publish(MeshUpdate::Workload(Box::new(direct_record())));
    scene.assert_fails(&scene.outside_client, SERVER).await;
    scene.assert_fails(&scene.client, SERVER).await;
    let sidecar = build::identity("ns", "sidecar");
    let connection = tunnel_as(
        &scene.mesh.pki,
        &sidecar,
        &scene.outside_client,
        &scene.server,
    )
    .await;
    let refused = send_connect(&connection, HeaderMap::new())
        .await
        .unwrap_err();
    assert_eq!(refused, StatusCode::FORBIDDEN);
    let waypoint = &mut scene.replicas[0];
    waypoint.assert_no_request();
    // Connections that the waypoint delivers itself are allowed.
    let from = &waypoint.host;
    let connection = tunnel_as(&waypoint.pki, &waypoint_identity(), from, &scene.server).await;
    let mut io = send_connect(&connection, HeaderMap::new())
        .await
        .unwrap()
        .into_io();
    io.shutdown().await.unwrap();
    let mut received = String::new();
    let reading = timeout(OPERATION_TIMEOUT, io.read_to_string(&mut received))
        .await
        .unwrap();
    reading.unwrap();
    assert_eq!(received, format!("{}\n", waypoint.host.ip));
    // Clients that know of the waypoint connect to it for the pod: it may not know the pod's
    // services.
    scene.mesh.publish_workload(foreign);
    for dialled in [SERVER, SERVICE] {
        let stream = scene.client.connect(socket_addr(dialled)).await.unwrap();
        let asked = waypoint.next().await;
        assert_eq!(asked.identity, build::identity("ns", "client"));
        assert_eq!(asked.authority(), SERVER);
        waypoint.deliver(asked, &scene.server).await;
        exchange_lines(stream, waypoint).await;
    }
}

// === other replicas ===

#[tokio::test]
async fn unusable_replica_is_replaced_by_another() {
    let mut scene = WaypointTestbed::new(&["10.9.0.3"]).await;
    let dead = scene.waypoint_pod("10.9.0.4").await;
    scene.enforce_for_all_identities();
    for _ in 0..12 {
        let stream = scene.client.connect(socket_addr(SERVICE)).await.unwrap();
        let waypoint = &mut scene.replicas[0];
        let asked = waypoint.next().await;
        let _tunnel = asked.incoming.accept(HeaderMap::new()).unwrap();
        drop(stream);
    }
    // The same from the server's side.
    for _ in 0..12 {
        let stream = scene
            .outside_client
            .connect(socket_addr(SERVER))
            .await
            .unwrap();
        let waypoint = &mut scene.replicas[0];
        let asked = waypoint
            .next_hairpin(&scene.server, None, &scene.outside_client)
            .await;
        let _tunnel = asked.incoming.accept(HeaderMap::new()).unwrap();
        drop(stream);
    }
    // A running replica that rejects.
    let pki = scene.mesh.pki.clone();
    let mut unable = WaypointReplica::serve(dead, pki);
    let refused = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = refused.clone();
    ambit_rt::spawn("unable", async move {
        while let Some(asked) = unable.requests.recv().await {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            asked.incoming.refuse(StatusCode::SERVICE_UNAVAILABLE);
        }
    });
    while refused.load(std::sync::atomic::Ordering::Relaxed) < 2 {
        let stream = scene.client.connect(socket_addr(SERVICE)).await.unwrap();
        let asked = scene.replicas[0].next().await;
        let _tunnel = asked.incoming.accept(HeaderMap::new()).unwrap();
        drop(stream);
    }
}

#[tokio::test]
async fn accepted_connection_is_never_sent_to_another_replica() {
    let mut scene = WaypointTestbed::new(&["10.9.0.3", "10.9.0.4"]).await;
    scene.enforce_for_all_identities();
    let mut stream = scene.client.connect(socket_addr(SERVICE)).await.unwrap();
    let [first, second] = &mut scene.replicas[..] else {
        panic!("two replicas");
    };
    let (asked, other) = tokio::select! {
        asked = first.next() => (asked, second),
        asked = second.next() => (asked, first),
    };
    let mut tunnel = asked.incoming.accept(HeaderMap::new()).unwrap().into_io();
    stream.write_all(b"bytes").await.unwrap();
    tunnel.read_exact(&mut [0; 5]).await.unwrap();
    drop(tunnel);
    assert!(read_until_end(&mut stream).await.is_err());
    other.assert_no_request();
}

// === a waypoint that comes while connections are open ===

#[tokio::test]
async fn direct_connections_end_after_the_waypoint_grace() {
    let mut scene =
        WaypointTestbed::with_env(&["10.9.0.3"], &[("AMBIT_WAYPOINT_GRACE", "300ms")]).await;
    let mut tunnelled = scene.client.connect(socket_addr(SERVER)).await.unwrap();
    let mut plain = scene
        .outside_client
        .connect(socket_addr(SERVER))
        .await
        .unwrap();
    let waypoint = &mut scene.replicas[0];
    let pki = waypoint.pki.clone();
    let connection = tunnel_as(&pki, &waypoint_identity(), &waypoint.host, &scene.server).await;
    let mut delivered = send_connect(&connection, HeaderMap::new())
        .await
        .unwrap()
        .into_io();
    for stream in [&mut tunnelled, &mut plain] {
        read_line(stream).await.unwrap();
    }
    let policy_free = |stream: &mut TcpStream| stream.try_write(b"goes on\n").unwrap();
    scene.enforce_at_server();
    policy_free(&mut tunnelled);
    assert_eq!(read_line(&mut tunnelled).await.unwrap(), "goes on");
    for stream in [&mut tunnelled, &mut plain] {
        assert!(read_until_end(stream).await.unwrap_or_default().is_empty());
    }
    let metrics = scene.mesh.nodes[1].metrics();
    assert!(metrics.contains("response_flags=\"DENY\""), "{metrics}");
    // A connection that the waypoint delivers stays open.
    delivered.write_all(b"stays\n").await.unwrap();
    delivered.shutdown().await.unwrap();
    let mut received = String::new();
    timeout(OPERATION_TIMEOUT, delivered.read_to_string(&mut received))
        .await
        .unwrap()
        .unwrap();
    assert!(received.ends_with("\nstays\n"), "{received}");
}

#[tokio::test]
async fn direct_connections_continue_during_the_grace_period() {
    let mut scene =
        WaypointTestbed::with_env(&["10.9.0.3"], &[("AMBIT_WAYPOINT_GRACE", "1h")]).await;
    let mut stream = scene.client.connect(socket_addr(SERVER)).await.unwrap();
    read_line(&mut stream).await.unwrap();
    scene.enforce_at_server();
    let (server, client) = (&scene.server, &scene.client);
    let mut hairpinned = client.connect(socket_addr(SERVER)).await.unwrap();
    let waypoint = &mut scene.replicas[0];
    let asked = waypoint.next_hairpin(server, Some("client"), client).await;
    waypoint.deliver(asked, server).await;
    read_line(&mut hairpinned).await.unwrap();
    scene.mesh.publish_workload(direct_record());
    for stream in [&mut stream, &mut hairpinned] {
        stream.write_all(b"goes on\n").await.unwrap();
        assert_eq!(read_line(stream).await.unwrap(), "goes on");
    }
    // A policy terminates it at any time.
    let of_client = build::from_principal("cluster.local/ns/ns/sa/client");
    scene.enforce_at_server();
    scene.mesh.publish(MeshUpdate::Policy(build::policy(
        "no-client",
        Action::Deny,
        of_client,
    )));
    assert!(
        read_until_end(&mut stream)
            .await
            .unwrap_or_default()
            .is_empty()
    );
    wait_until("one is left for each tunnel", || {
        scene.server.pod.as_ref().unwrap().connections().len() == 2
    })
    .await;
    hairpinned.write_all(b"goes on\n").await.unwrap();
    assert_eq!(read_line(&mut hairpinned).await.unwrap(), "goes on");
}
