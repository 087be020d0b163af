//! Tests policies on new connections, and on open connections when policies change.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use ambit_model::{Action, Match};
use ambit_proxy::state::MeshUpdate;
use ambit_testkit::build;
use tokio::io::AsyncWriteExt;

use crate::fixture::{Mesh, PodHost, read_line, read_until_end};

/// Whether the server's greeting reaches a client that sends nothing. Connecting always succeeds, even if policies deny
/// the client.
async fn is_served(client: &PodHost, to: SocketAddr) -> bool {
    let began = Instant::now();
    let mut stream = client.connect(to).await.expect("it is refused later");
    let is_served = read_line(&mut stream).await.is_ok();
    // The side that denies lets the client see first that it is connected.
    let took = began.elapsed();
    assert!(is_served || took >= Duration::from_millis(95), "{took:?}");
    is_served
}

#[tokio::test]
async fn tunnel_has_an_identity_and_plaintext_none() {
    let mut mesh = Mesh::new().await;
    let friend = mesh.captured_pod(0, "friend", "10.9.0.1").await;
    let stranger = mesh.captured_pod(0, "stranger", "10.9.0.2").await;
    let outside = mesh.pod("outside", "10.9.0.3").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.4").await;
    server.serve_echo(8080);
    let to = SocketAddr::new(server.ip, 8080);
    let only = build::from_principal("cluster.local/ns/ns/sa/friend");
    mesh.publish(MeshUpdate::Policy(build::policy(
        "only-friend",
        Action::Allow,
        only,
    )));
    assert!(is_served(&friend, to).await);
    assert!(!is_served(&stranger, to).await);
    assert!(!is_served(&outside, to).await);
    let metrics = mesh.nodes[1].metrics();
    assert!(metrics.contains("response_flags=\"DENY\""), "{metrics}");
}

#[tokio::test]
async fn requiring_any_identity_blocks_only_plaintext() {
    let mut mesh = Mesh::new().await;
    let friend = mesh.captured_pod(0, "friend", "10.9.0.1").await;
    let outside = mesh.pod("outside", "10.9.0.3").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.4").await;
    server.serve_echo(8080);
    let to = SocketAddr::new(server.ip, 8080);
    mesh.publish(MeshUpdate::Policy(build::policy(
        "strict",
        Action::Deny,
        build::from_unauthenticated(),
    )));
    assert!(is_served(&friend, to).await);
    assert!(!is_served(&outside, to).await);
}

#[tokio::test]
async fn policy_change_closes_only_denied_connections() {
    let mut mesh = Mesh::new().await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let outside = mesh.pod("outside", "10.9.0.3").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.4").await;
    for port in [8080, 8081] {
        server.serve_echo(port);
    }
    let mut cut = client
        .connect(SocketAddr::new(server.ip, 8080))
        .await
        .unwrap();
    let mut cut_plain = outside
        .connect(SocketAddr::new(server.ip, 8080))
        .await
        .unwrap();
    let mut stays = client
        .connect(SocketAddr::new(server.ip, 8081))
        .await
        .unwrap();
    for stream in [&mut cut, &mut cut_plain, &mut stays] {
        read_line(stream).await.unwrap();
    }
    let forbidden = Match {
        destination_ports: vec![8080],
        ..Match::default()
    };
    mesh.publish(MeshUpdate::Policy(build::policy(
        "no-8080",
        Action::Deny,
        forbidden,
    )));
    for stream in [&mut cut, &mut cut_plain] {
        assert!(read_until_end(stream).await.unwrap_or_default().is_empty());
    }
    stays.write_all(b"still here\n").await.unwrap();
    assert_eq!(read_line(&mut stays).await.unwrap(), "still here");
}

#[tokio::test]
async fn connections_are_rechecked_when_a_policy_is_referenced() {
    let mut mesh = Mesh::new().await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.4").await;
    server.serve_echo(8080);
    let mut stream = client
        .connect(SocketAddr::new(server.ip, 8080))
        .await
        .unwrap();
    read_line(&mut stream).await.unwrap();
    let mut workload = build::workload("server", &["10.9.0.4"]);
    let everything = Match {
        destination_ports: vec![8080],
        ..Match::default()
    };
    let mut policy = build::policy("selected", Action::Deny, everything);
    build::select_workload(&mut workload, &mut policy);
    mesh.publish(MeshUpdate::Policy(policy));
    stream.write_all(b"nothing selects it yet\n").await.unwrap();
    read_line(&mut stream).await.unwrap();
    mesh.publish_workload(workload);
    assert!(
        read_until_end(&mut stream)
            .await
            .unwrap_or_default()
            .is_empty()
    );
}

/// Checks policies that arrive after the workload record that names them, or that are removed before the record stops
/// naming them.
#[tokio::test]
async fn unknown_policy_denies_new_connections_and_spares_open_ones() {
    let mut mesh = Mesh::with_env(&[("AMBIT_MISSING_POLICY_GRACE", "1h")]).await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.4").await;
    server.serve_echo(8080);
    let to = SocketAddr::new(server.ip, 8080);
    let mut stream = client.connect(to).await.unwrap();
    read_line(&mut stream).await.unwrap();
    let mut workload = build::workload("server", &["10.9.0.4"]);
    let admitted = build::from_principal("cluster.local/ns/ns/sa/client");
    let mut policy = build::policy("selected", Action::Allow, admitted);
    build::select_workload(&mut workload, &mut policy);
    mesh.publish_workload(workload);
    assert!(!is_served(&client, to).await);
    stream.write_all(b"spared\n").await.unwrap();
    assert_eq!(read_line(&mut stream).await.unwrap(), "spared");

    mesh.publish(MeshUpdate::Policy(policy));
    assert!(is_served(&client, to).await);
    mesh.publish(MeshUpdate::PolicyRemoved("ns/selected".into()));
    assert!(!is_served(&client, to).await);
    stream.write_all(b"spared again\n").await.unwrap();
    assert_eq!(read_line(&mut stream).await.unwrap(), "spared again");

    // A denial is not delayed.
    let nobody = build::policy(
        "nobody",
        Action::Deny,
        Match {
            destination_ports: vec![8080],
            ..Match::default()
        },
    );
    mesh.publish(MeshUpdate::Policy(nobody));
    assert!(
        read_until_end(&mut stream)
            .await
            .unwrap_or_default()
            .is_empty()
    );
}

#[tokio::test]
async fn policy_that_stays_unknown_closes_open_connections() {
    let mut mesh = Mesh::with_env(&[("AMBIT_MISSING_POLICY_GRACE", "10ms")]).await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.4").await;
    server.serve_echo(8080);
    let to = SocketAddr::new(server.ip, 8080);
    let mut stream = client.connect(to).await.unwrap();
    read_line(&mut stream).await.unwrap();
    let workload = build::workload("server", &["10.9.0.4"]);
    mesh.publish_workload(ambit_model::Workload {
        authorization_policies: vec!["ns/never".into()],
        ..workload
    });
    assert!(
        read_until_end(&mut stream)
            .await
            .unwrap_or_default()
            .is_empty()
    );
}

#[tokio::test]
async fn unreadable_policy_denies_its_scope_until_replaced() {
    let mut mesh = Mesh::new().await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.4").await;
    server.serve_echo(8080);
    let to = SocketAddr::new(server.ip, 8080);
    let admitted = build::from_principal("cluster.local/ns/ns/sa/client");
    let good = build::policy("p", Action::Allow, admitted);
    mesh.publish(MeshUpdate::Policy(good.clone()));
    let mut stream = client.connect(to).await.unwrap();
    read_line(&mut stream).await.unwrap();
    let (key, scope) = (good.key(), good.scope);
    let odd = ambit_model::Authorization::substitute(key, scope, false, "odd".into());
    mesh.publish(MeshUpdate::Policy(odd));
    assert!(
        read_until_end(&mut stream)
            .await
            .unwrap_or_default()
            .is_empty()
    );
    assert!(!is_served(&client, to).await);
    mesh.publish(MeshUpdate::Policy(good));
    assert!(is_served(&client, to).await);
}
