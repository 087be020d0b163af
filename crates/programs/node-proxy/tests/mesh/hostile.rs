//! Tests peers that violate HBONE or TLS.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use ambit_hbone::{TunnelError, client, tls};
use ambit_model::Identity;
use ambit_sys::socket::{self, ListenSpec, OutboundSpec, Transparent};
use ambit_testkit::{Pki, build};
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::fixture::{Mesh, OPERATION_TIMEOUT, PodHost, read_line, read_until_end};

/// Opens a TCP connection from a namespace to the server's HBONE port, with the packet mark of a node proxy.
async fn connect_to_hbone(from: &PodHost, server: &PodHost) -> TcpStream {
    let to = SocketAddr::new(server.ip, 15008);
    let spec = OutboundSpec {
        mark: Some(0x539),
        ..Default::default()
    };
    socket::outbound(Some(from.netns()), to, &spec)
        .unwrap()
        .connect(to)
        .await
        .unwrap()
}

async fn tunnel_as(
    pki: &Arc<Pki>,
    me: &Identity,
    from: &PodHost,
    server: &PodHost,
) -> Result<client::ClientConnection, String> {
    let expected = [build::identity("ns", &server.name)];
    let config = pki.cert(me).client_config(&expected).unwrap();
    let stream = connect_to_hbone(from, server).await;
    let stream = tls::connect(stream, config, OPERATION_TIMEOUT)
        .await
        .map_err(|error| error.to_string())?;
    let settings = ambit_hbone::Settings::default();
    let (connection, driver) = client::handshake(stream, &settings)
        .await
        .map_err(|error| error.to_string())?;
    ambit_rt::spawn("driver", driver.run(|| {}));
    Ok(connection)
}

async fn connect_status(connection: &client::ClientConnection, authority: &str) -> StatusCode {
    let authority = Uri::try_from(authority).unwrap();
    match connection.open_tunnel(authority, HeaderMap::new()).await {
        Ok(_) => StatusCode::OK,
        Err(TunnelError::Status(connect_status)) => connect_status,
        Err(error) => panic!("no answer: {error}"),
    }
}

#[tokio::test]
async fn each_invalid_target_has_its_status() {
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "10.9.0.1").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.2").await;
    server.serve_echo(8080);
    let me = build::identity("ns", "client");
    let connection = tunnel_as(&mesh.pki, &me, &client, &server).await.unwrap();
    for (authority, expected) in [
        ("10.9.0.2:8080", 200),
        ("10.9.0.3:8080", 400),
        ("10.9.0.2:15008", 503),
        ("10.9.0.2:15001", 503),
        ("10.9.0.2:15006", 503),
        ("10.9.0.2:1", 503),
        ("nowhere.example.com:80", 503),
        ("10.9.0.2:0", 400),
    ] {
        assert_eq!(
            connect_status(&connection, authority).await,
            expected,
            "{authority}"
        );
    }
}

#[tokio::test]
async fn denied_tunnel_gets_401() {
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "10.9.0.1").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.2").await;
    server.serve_echo(8080);
    let only = build::from_principal("cluster.local/ns/ns/sa/somebody");
    let policy = build::policy("p", ambit_model::Action::Allow, only);
    mesh.publish(ambit_proxy::state::MeshUpdate::Policy(policy));
    let me = build::identity("ns", "client");
    let connection = tunnel_as(&mesh.pki, &me, &client, &server).await.unwrap();
    assert_eq!(connect_status(&connection, "10.9.0.2:8080").await, 401);
}

#[tokio::test]
async fn peer_of_another_trust_domain_or_root_fails_the_handshake() {
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "10.9.0.1").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.2").await;
    server.serve_echo(8080);
    let foreign = Identity::new("other.domain", "ns", "client");
    let stranger = Arc::new(Pki::new());
    for (pki, me) in [
        (&mesh.pki, foreign),
        (&stranger, build::identity("ns", "client")),
    ] {
        // In TLS 1.3 the client learns of the rejection only when it reads.
        if let Ok(connection) = tunnel_as(pki, &me, &client, &server).await {
            let authority = Uri::from_static("10.9.0.2:8080");
            let opened = connection.open_tunnel(authority, HeaderMap::new()).await;
            assert!(
                matches!(opened, Err(TunnelError::Stream(_))),
                "{me}: {opened:?}"
            );
        }
    }
    assert_eq!(server.pod.as_ref().unwrap().connections().len(), 0);
}

#[tokio::test]
async fn oversized_headers_end_the_stream_or_connection() {
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "10.9.0.1").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.2").await;
    server.serve_echo(8080);
    let me = build::identity("ns", "client");
    let connection = tunnel_as(&mesh.pki, &me, &client, &server).await.unwrap();
    let authority = || Uri::from_static("10.9.0.2:8080");
    let (open, _) = connection
        .open_tunnel(authority(), HeaderMap::new())
        .await
        .unwrap();
    let headers = |fields: usize| -> HeaderMap {
        let long = HeaderValue::try_from("x".repeat(8000)).unwrap();
        let name = |i| http::HeaderName::try_from(format!("x-{i}")).unwrap();
        (0..fields).map(|i| (name(i), long.clone())).collect()
    };
    let refused = connection.open_tunnel(authority(), headers(5)).await;
    assert!(refused.is_err(), "{refused:?}");
    let mut io = open.into_io();
    io.write_all(b"x").await.unwrap();
    let mut hello = [0; 9];
    tokio::time::timeout(OPERATION_TIMEOUT, io.read_exact(&mut hello))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(&hello, b"10.9.0.1\n");
    // An endless header block is not read to its end: only the caller's connection ends.
    let other = tunnel_as(&mesh.pki, &me, &client, &server).await.unwrap();
    let refused = connection.open_tunnel(authority(), headers(40)).await;
    assert!(refused.is_err(), "{refused:?}");
    let mut echo = Vec::new();
    let _end_or_reset = tokio::time::timeout(OPERATION_TIMEOUT, io.read_to_end(&mut echo))
        .await
        .unwrap();
    assert_eq!(
        connect_status(&other, "10.9.0.2:8080").await,
        StatusCode::OK
    );
}

#[tokio::test]
async fn bytes_other_than_tls_end_the_connection() {
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "10.9.0.1").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.2").await;
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff; 4096],
        &[0x16, 3, 1, 0xff, 0xff],
    ] {
        let mut stream = connect_to_hbone(&client, &server).await;
        stream.write_all(garbage).await.unwrap();
        stream.shutdown().await.unwrap();
        // The response is at most an alert.
        assert!(read_until_end(&mut stream).await.unwrap_or_default().len() < 16);
    }
}

#[tokio::test]
async fn connections_to_the_proxys_own_ports_never_loop() {
    let mut mesh = Mesh::new().await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let outside = mesh.pod("outside", "10.9.0.3").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.2").await;
    let mut calls = Vec::new();
    for port in [15001, 15006, 15008] {
        for ip in ["127.0.0.1", "10.9.0.1", "10.9.0.2"] {
            calls.push((&client, SocketAddr::new(ip.parse().unwrap(), port)));
        }
        calls.push((&outside, SocketAddr::new(server.ip, port)));
    }
    for (from, to) in calls {
        let Ok(mut stream) = from.connect(to).await else {
            continue;
        };
        // Our parser rejects it; TLS waits for more and gets the end of data.
        let _gone = stream.write_all(b"hello").await;
        let _gone = stream.shutdown().await;
        assert!(
            read_until_end(&mut stream).await.unwrap_or_default().len() < 16,
            "{} to {to}",
            from.name
        );
    }
    for pod in [&client, &server] {
        let connections = &pod.pod.as_ref().unwrap().connections();
        ambit_testkit::wait_until("no connection is left going round", || {
            connections.is_empty()
        })
        .await;
    }
}

#[tokio::test]
async fn stalled_handshakes_time_out() {
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "10.9.0.1").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.2").await;
    let mut stream = connect_to_hbone(&client, &server).await;
    stream.write_all(&[0x16, 3, 1]).await.unwrap();
    let began = std::time::Instant::now();
    assert!(read_until_end(&mut stream).await.unwrap_or_default().len() < 16);
    assert!(began.elapsed() < Duration::from_secs(15));
}

/// Starts an application that accepts no connections: the accept queue of its listener is full.
async fn fill_accept_queue(server: &PodHost, port: u16) -> (TcpListener, Vec<TcpStream>) {
    let spec = ListenSpec {
        backlog: 1,
        transparent: Transparent::Off,
        ..ListenSpec::for_pod(port, None)
    };
    let listener = socket::listen(Some(server.netns()), &spec)
        .unwrap()
        .listener;
    let to = SocketAddr::new(server.ip, port);
    let mut waiting = Vec::new();
    for _ in 0..2 {
        waiting.push(server.connect(to).await.unwrap());
    }
    (TcpListener::from_std(listener).unwrap(), waiting)
}

#[tokio::test]
async fn cancelled_request_is_not_executed() {
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "10.9.0.1").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.2").await;
    server.serve_echo(8081);
    let (listener, waiting) = fill_accept_queue(&server, 8080).await;
    let me = build::identity("ns", "client");
    let connection = tunnel_as(&mesh.pki, &me, &client, &server).await.unwrap();
    let connections = &server.pod.as_ref().unwrap().connections();
    let asked: Vec<_> = (0..50)
        .map(|_| connection.open_tunnel(Uri::from_static("10.9.0.2:8080"), HeaderMap::new()))
        .collect();
    // Requests are sent when they are first polled; none is answered.
    let mut asked = futures_util::future::join_all(asked);
    tokio::select! {
        _answered = &mut asked => panic!("the application does not answer"),
        () = ambit_testkit::wait_until("all are being dialled", || connections.len() == 50) => {}
    }
    drop(asked);
    ambit_testkit::wait_until("nothing is dialled for them", || connections.is_empty()).await;
    // The cause is not the application's silence, which would take until its timeout.
    let metrics = mesh.nodes[1].metrics();
    let given_up = metrics.lines().filter_map(|line| {
        let failed = line.starts_with("istio_tcp_connections_failed_total");
        let count = line.rsplit_once(' ')?.1.parse::<f64>().ok()?;
        (failed && line.contains("\"H2_HANDSHAKE_FAILURE\"")).then_some(count)
    });
    assert_eq!(given_up.sum::<f64>(), 50.0, "{metrics}");
    // The application accepts the waiting connections: cancelled ones are not among them.
    for _ in &waiting {
        listener.accept().await.unwrap();
    }
    assert_eq!(
        connect_status(&connection, "10.9.0.2:8081").await,
        StatusCode::OK
    );
    drop(waiting);
    let more = futures_util::FutureExt::now_or_never(listener.accept());
    assert!(more.is_none(), "the application was called: {more:?}");
}

#[tokio::test]
async fn setups_of_one_source_are_limited_and_others_served() {
    let limits = [("AMBIT_MAX_SETUPS_PER_SOURCE", "8")];
    let mut mesh = Mesh::with_env(&limits).await;
    let client = mesh.pod("client", "10.9.0.1").await;
    let other = mesh.captured_pod(0, "other", "10.9.0.3").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.2").await;
    server.serve_echo(8081);
    let (_listener, _waiting) = fill_accept_queue(&server, 8080).await;
    let me = build::identity("ns", "client");
    let connection = tunnel_as(&mesh.pki, &me, &client, &server).await.unwrap();
    let authority = Uri::from_static("10.9.0.2:8080");
    let asked: Vec<_> = (0..20)
        .map(|_| Box::pin(connection.open_tunnel(authority.clone(), HeaderMap::new())))
        .collect();
    let mut refused = 0;
    let mut left = asked;
    while refused < 12 {
        let (answer, _, rest) = futures_util::future::select_all(left).await;
        let Err(TunnelError::Status(StatusCode::SERVICE_UNAVAILABLE)) = answer else {
            panic!("not refused for the limit: {answer:?}");
        };
        refused += 1;
        left = rest;
    }
    let metrics = mesh.nodes[1].metrics();
    let counted = "ambit_setups_refused_total{limit=\"source\"} 12";
    assert!(metrics.contains(counted), "{metrics}");
    let mut served = other
        .connect(SocketAddr::new(server.ip, 8081))
        .await
        .unwrap();
    assert_eq!(read_line(&mut served).await.unwrap(), "10.9.0.3");
    // The slots are free again as soon as the requests are cancelled.
    drop(left);
    let connections = &server.pod.as_ref().unwrap().connections();
    ambit_testkit::wait_until("only the other is left", || connections.len() == 1).await;
    assert_eq!(
        connect_status(&connection, "10.9.0.2:8081").await,
        StatusCode::OK
    );
}
