//! Tests peers of other trust domains, and the end of their connections when a trust domain is removed.

use std::sync::Arc;

use ambit_testkit::{Pki, accept_trust_domains as accept, build};
use ambit_tls::{TlsSettings, TrustDomains};
use tokio::io::AsyncWriteExt;

use crate::{
    fixture::{Mesh, Node, read_line, read_until_end},
    pair::Pair,
};

const OWN_TRUST_DOMAIN: &str = "cluster.local";

/// Creates a CA, and the set of trust domains that its certificates are verified with.
fn new_authority() -> (Arc<Pki>, TrustDomains) {
    let domains = TrustDomains::new();
    let settings = TlsSettings::default().with_trust_domains(domains.clone());
    (Arc::new(Pki::with_settings(settings)), domains)
}

/// Creates a client, and a server whose trust domain is `domain` according to the server's node and `named` according
/// to the client's node.
async fn pair_across_domains(pkis: [Arc<Pki>; 2], domain: &str, named: &str) -> Pair {
    let [own, other] = pkis;
    let nodes = vec![
        Node::new(&own, &[]),
        Node::new(&other, &[("TRUST_DOMAIN", domain)]),
    ];
    let mut mesh = Mesh::with_nodes(own, nodes).await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let mut server = mesh.pod("server", "10.9.0.2").await;
    for (node, trust_domain) in [named, domain].into_iter().enumerate() {
        let mut record = build::workload("server", &["10.9.0.2"]);
        record.trust_domain = trust_domain.into();
        mesh.nodes[node].publish_all([record]);
    }
    mesh.capture(1, &mut server);
    Pair::new(mesh, client, server)
}

impl Pair {
    /// Checks that an open connection ends and later ones fail when `change` removes a trust domain. One of the nodes
    /// `judges`, which lose the trust domain, must report the reason.
    async fn assert_connection_closes(&self, judges: &[usize], change: impl Fn()) {
        let mut stream = self.open().await.unwrap();
        stream.write_all(b"hello\n").await.unwrap();
        assert_eq!(read_line(&mut stream).await.unwrap(), "hello");
        change();
        let left = read_until_end(&mut stream).await;
        assert!(left.as_ref().map_or(true, Vec::is_empty), "{left:?}");
        ambit_testkit::wait_until("the metrics name the reason", || {
            let mut metrics = judges.iter().map(|node| self.mesh.nodes[*node].metrics());
            metrics.any(|metrics| metrics.contains("response_flags=\"CERT_REVOKED\""))
        })
        .await;
        assert!(self.open().await.is_err());
    }
}

#[tokio::test]
async fn federated_meshes_accept_each_other_by_their_roots() {
    let ((own, domains), (west, of_west)) = (new_authority(), new_authority());
    let pair = pair_across_domains([own.clone(), west.clone()], "west", "west").await;
    assert!(pair.open().await.is_err(), "neither accepts the other");
    accept(&domains, &[], &[("west", &west)]);
    assert!(pair.open().await.is_err(), "the server's side does not");
    accept(&of_west, &[], &[(OWN_TRUST_DOMAIN, &own)]);
    pair.assert_connection_closes(&[1], || accept(&of_west, &[], &[(OWN_TRUST_DOMAIN, &west)]))
        .await;
    accept(&of_west, &[], &[(OWN_TRUST_DOMAIN, &own)]);
    pair.assert_connection_closes(&[0], || accept(&domains, &[], &[]))
        .await;
}

#[tokio::test]
async fn authority_cannot_sign_for_another_trust_domain() {
    let ((own, domains), (west, of_west)) = (new_authority(), new_authority());
    accept(&domains, &[], &[("west", &west)]);
    accept(&of_west, &[], &[(OWN_TRUST_DOMAIN, &own)]);
    // The server claims an identity of the client's mesh.
    let pair = pair_across_domains(
        [own.clone(), west.clone()],
        OWN_TRUST_DOMAIN,
        OWN_TRUST_DOMAIN,
    )
    .await;
    assert!(pair.open().await.is_err());
    accept(&domains, &[], &[(OWN_TRUST_DOMAIN, &west)]);
    pair.open().await.unwrap();
}

#[tokio::test]
async fn workloads_of_an_alias_belong_to_the_mesh() {
    let (own, domains) = new_authority();
    let pair = pair_across_domains([own.clone(), own.clone()], "old", OWN_TRUST_DOMAIN).await;
    assert!(pair.open().await.is_err(), "no alias yet");
    accept(&domains, &["old", OWN_TRUST_DOMAIN], &[]);
    // Both nodes have the same trust domains.
    pair.assert_connection_closes(&[0, 1], || accept(&domains, &[], &[]))
        .await;
}
