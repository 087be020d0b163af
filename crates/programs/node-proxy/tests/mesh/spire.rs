//! Tests pods and a waypoint with certificates of real SPIRE: one server, and one agent for all nodes of the test.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use ambit_certificates::{Certificates, CertificatesOptions, DelegatedIdentity, WorkloadApi};
use ambit_model::Identity;
use ambit_testkit::{Pki, Spire, build, is_accepted, wait_until};
use ambit_tls::{TlsSettings, WorkloadCert};
use tokio::io::AsyncWriteExt;

use crate::{
    fixture::{Node, OPERATION_TIMEOUT, read_line},
    pair::Pair,
};

/// Certificate lifetime: long enough for a test, and short enough for a renewal within it.
const CERTIFICATE_TTL: Duration = Duration::from_secs(20);

fn identity_of(account: &str) -> Identity {
    build::identity("ns", account)
}

fn register(spire: &Spire, account: &str, options: &[&str]) {
    let selectors = ["k8s:ns:ns".to_owned(), format!("k8s:sa:{account}")];
    let selectors = selectors.each_ref().map(String::as_str);
    spire.register(&identity_of(account).to_string(), &selectors, options);
}

fn certificates(spire: &Spire) -> Certificates {
    let socket = spire.admin_socket().parse().unwrap();
    let client = DelegatedIdentity::start(&socket, &TlsSettings::default());
    Certificates::start(Arc::new(client), CertificatesOptions::default())
}

/// Waits for a certificate of `identity` that differs from `last`, and returns it.
async fn next(
    certificates: &Certificates,
    identity: &Identity,
    last: Option<&WorkloadCert>,
) -> Arc<WorkloadCert> {
    certificates.prefetch(identity);
    let leaf = |cert: &WorkloadCert| cert.chain().first().cloned();
    let next = || {
        let cert = certificates.peek(identity)?;
        let is_other = last.is_none_or(|last| leaf(last) != leaf(&cert));
        is_other.then_some(cert)
    };
    wait_until("another certificate", || next().is_some()).await;
    next().unwrap()
}

async fn pair(spire: &Spire) -> Pair {
    let nodes = [0, 1].map(|_| Node::with_certificates(certificates(spire), &[]));
    Pair::captured(Arc::new(Pki::new()), nodes.into()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_connect_with_identities_of_real_spire() {
    let mut spire = Spire::start(CERTIFICATE_TTL);
    register(&spire, "client", &[]);
    let pair = pair(&spire).await;
    assert!(pair.open().await.is_err(), "the server has no entry");
    register(&spire, "server", &[]);
    let [client, server] = [0, 1].map(|node| &pair.mesh.nodes[node].proxy.certificates);
    let first = next(client, &identity_of("client"), None).await;
    next(server, &identity_of("server"), None).await;
    let mut stream = pair.open().await.unwrap();

    // SPIRE replaces certificates at half of their lifetime.
    let second = next(client, &identity_of("client"), Some(&first)).await;
    assert!(second.not_after() > first.not_after());
    stream.write_all(b"on the old one\n").await.unwrap();
    assert_eq!(read_line(&mut stream).await.unwrap(), "on the old one");
    pair.open().await.unwrap();

    // The last certificates stay while the agent is unavailable, and the proxy reconnects.
    spire.stop_agent();
    pair.open().await.unwrap();
    spire.start_agent();
    let third = next(client, &identity_of("client"), Some(&second)).await;
    next(server, &identity_of("server"), None).await;
    // Certificates have whole seconds, so that the second one may have the same age.
    assert!(third.not_after() >= second.not_after());
    pair.open().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn waypoints_and_pods_of_real_spire_accept_each_other() {
    let spire = Spire::start(Duration::from_secs(3600));
    let own = Identity::new("cluster.local", "shop", "waypoint");
    spire.register_self(&own.to_string());
    let west = Pki::new();
    spire.accept_bundle("spiffe://west", &west.root_pem());
    register(&spire, "client", &["-federatesWith", "spiffe://west"]);
    register(&spire, "other", &[]);

    let socket = spire.workload_socket().parse().unwrap();
    let api = WorkloadApi::start(&socket, &TlsSettings::default());
    let of_waypoint = Certificates::start(Arc::new(api), CertificatesOptions::default());
    let waypoint = next(&of_waypoint, &own, None).await;
    let of_node = certificates(&spire);
    let client = next(&of_node, &identity_of("client"), None).await;
    assert!(is_accepted(&client, &waypoint).await);
    assert!(is_accepted(&waypoint, &client).await);
    let unknown = of_node.get(&identity_of("unknown")).await.unwrap_err();
    let text = ambit_rt::ErrorChain(&unknown).to_string();
    assert!(text.contains("create a registration entry"), "{text}");

    // Federation is a setting of the registration entry, not of the node.
    let settings = TlsSettings::default();
    let peer = {
        let der = client.roots().iter();
        let pem = der
            .map(|root| ambit_tls::pem::encode_pem("CERTIFICATE", root))
            .collect();
        let contents = ambit_mesh_json::TrustDomains {
            roots: [("cluster.local".to_owned(), pem)].into(),
            ..Default::default()
        };
        settings.trust_domains().replace(&contents).unwrap();
        let identity = Identity::new("west", "ns", "peer");
        west.cert_with(
            &settings,
            &identity,
            SystemTime::now(),
            OPERATION_TIMEOUT * 60,
        )
    };
    assert!(is_accepted(&peer, &client).await);
    let other = next(&of_node, &identity_of("other"), None).await;
    assert!(!is_accepted(&peer, &other).await);
    spire.withdraw_bundle("spiffe://west");
    let refused = async {
        while is_accepted(&peer, &client).await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(OPERATION_TIMEOUT, refused)
        .await
        .unwrap();
}
