//! Tests of clients of other trust domains.

use std::time::{Duration, SystemTime};

use ambit_model::Identity;
use ambit_testkit::{Pki, accept_trust_domains};
use ambit_tls::{TlsSettings, TrustDomains, WorkloadCert};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use crate::fixture::{TCP, TIMEOUT, World, bind_listener, read_response};

const SERVICE: &str = "10.96.0.1";
const DAY: Duration = Duration::from_secs(86_400);

/// Whether a client with this certificate can open a tunnel.
async fn can_open_tunnel(world: &World, certificate: &WorkloadCert) -> bool {
    match world.try_client(certificate).await {
        Some(client) => client.try_tunnel(SERVICE, TCP).await.is_ok(),
        None => false,
    }
}

#[tokio::test]
async fn clients_of_accepted_trust_domains_connect() {
    let domains = TrustDomains::new();
    let settings = TlsSettings::default().with_trust_domains(domains.clone());
    let (west, stranger) = (Pki::new(), Pki::new());
    let world = World::with_pki(&[], Pki::with_settings(settings)).await;
    let (application, address) = bind_listener().await;
    world.serve("db", SERVICE, &[address]);
    let accept = |aliases: &[&str], roots: &Pki| {
        accept_trust_domains(&domains, aliases, &[("west", roots)]);
    };
    // Clients accept the waypoint in any trust domain.
    let of_clients = TrustDomains::new();
    accept_trust_domains(&of_clients, &[], &[("cluster.local", &world.pki)]);
    let of_clients = TlsSettings::default().with_trust_domains(of_clients);
    let certificate = |pki: &Pki, domain: &str| {
        let identity = Identity::new(domain, "ns", "client");
        pki.cert_with(&of_clients, &identity, SystemTime::now(), DAY)
    };
    // The waypoint's own authority and west's, each for every trust domain.
    let domains_of = |pki: &Pki| {
        ["cluster.local", "old", "west", "foreign"].map(|domain| certificate(pki, domain))
    };
    let all = domains_of(&world.pki).into_iter();
    let all: Vec<WorkloadCert> = all.chain(domains_of(&west)).collect();
    let expect = |names: [bool; 8]| {
        let (world, all) = (&world, &all);
        async move {
            for (certificate, is_accepted) in all.iter().zip(names) {
                let passes = can_open_tunnel(world, certificate).await;
                assert_eq!(passes, is_accepted, "{}", certificate.identity());
            }
        }
    };
    expect([true, false, false, false, false, false, false, false]).await;
    accept(&["old"], &west);
    expect([true, true, false, false, false, false, true, false]).await;

    let clients = [&all[1], &all[6]];
    let mut open = Vec::new();
    for certificate in clients {
        let client = world.client_with_certificate(certificate).await;
        let mut tunnel = client.tunnel(SERVICE, TCP).await;
        tunnel.write_all(b"one").await.unwrap();
        open.push((client, tunnel));
    }
    let mut bytes = [0; 3];
    let mut streams = Vec::new();
    while streams.len() < 2 {
        let (mut stream, _) = timeout(TIMEOUT, application.accept())
            .await
            .unwrap()
            .unwrap();
        // The tunnels of the checks above transferred no bytes.
        if matches!(
            timeout(TIMEOUT, stream.read_exact(&mut bytes)).await,
            Ok(Ok(_))
        ) {
            streams.push(stream);
        }
    }
    accept(&[], &stranger);
    for (_, tunnel) in open {
        let rest = read_response(tunnel).await;
        assert!(!rest.ended_with_fin && rest.bytes.is_empty(), "{rest:?}");
    }
    expect([true, false, false, false, false, false, false, false]).await;
}
