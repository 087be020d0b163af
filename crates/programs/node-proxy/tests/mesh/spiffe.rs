//! Tests pods whose certificates a (simulated) SPIRE agent of their node issues.

use std::{sync::Arc, time::Duration};

use ambit_certificates::{Certificates, CertificatesOptions, DelegatedIdentity};
use ambit_model::Identity;
use ambit_testkit::{Pki, SpiffeAgent, build, wait_until};
use ambit_tls::TlsSettings;
use tokio::io::AsyncWriteExt;

use crate::{
    fixture::{Node, read_line},
    pair::Pair,
};

const HOUR: Duration = Duration::from_secs(3600);

fn identity_of(account: &str) -> Identity {
    build::identity("ns", account)
}

/// Client and server on two nodes, each node with its own SPIFFE agent.
struct SpiffeTestbed {
    pair: Pair,
    agents: [SpiffeAgent; 2],
}

impl SpiffeTestbed {
    async fn new() -> Self {
        let pki = Arc::new(Pki::new());
        let agents = [SpiffeAgent::start(), SpiffeAgent::start()];
        let node = |agent: &SpiffeAgent| {
            agent.change(|entries| {
                let domain = "cluster.local".to_owned();
                entries.bundles.insert(domain, pki.bundle());
            });
            let socket = agent.admin_socket().parse().unwrap();
            let client = DelegatedIdentity::start(&socket, &TlsSettings::default());
            let certificates =
                Certificates::start(Arc::new(client), CertificatesOptions::default());
            Node::with_certificates(certificates, &[])
        };
        let nodes = agents.iter().map(node).collect();
        Self {
            pair: Pair::captured(pki, nodes).await,
            agents,
        }
    }

    fn register(&self, node: usize, account: &str) {
        let svid = self.pair.mesh.pki.svid(&identity_of(account), HOUR);
        self.agents[node]
            .change(|entries| entries.register_delegated(&identity_of(account), svid, &[]));
    }

    /// Waits until the node has a certificate of the service account `account` for which `is_it` holds, and returns it.
    async fn wait_for_certificate(
        &self,
        node: usize,
        account: &str,
        is_it: impl Fn(&[u8]) -> bool,
    ) -> Vec<u8> {
        let certificates = &self.pair.mesh.nodes[node].proxy.certificates;
        certificates.prefetch(&identity_of(account));
        let leaf = || {
            Some(
                certificates
                    .peek(&identity_of(account))?
                    .chain()
                    .first()?
                    .to_vec(),
            )
        };
        wait_until("the certificate", || {
            leaf().is_some_and(|leaf| is_it(&leaf))
        })
        .await;
        leaf().unwrap()
    }
}

#[tokio::test]
async fn connections_continue_while_svids_are_rotated() {
    let agents = SpiffeTestbed::new().await;
    let pair = &agents.pair;
    agents.register(0, "client");
    agents.register(1, "server");
    let first = agents.wait_for_certificate(0, "client", |_| true).await;
    agents.wait_for_certificate(1, "server", |_| true).await;
    let mut stream = pair.open().await.unwrap();
    agents.register(0, "client");
    agents.register(1, "server");
    agents
        .wait_for_certificate(0, "client", |leaf| leaf != first)
        .await;
    stream.write_all(b"on the old one\n").await.unwrap();
    assert_eq!(read_line(&mut stream).await.unwrap(), "on the old one");
    pair.open().await.unwrap();
}

#[tokio::test]
async fn pods_without_registration_entry_get_no_plaintext() {
    let agents = SpiffeTestbed::new().await;
    let pair = &agents.pair;
    agents.register(0, "client");
    assert!(pair.open().await.is_err());
    let dump = pair.mesh.nodes[1].proxy.certificates.dump();
    let of_server = dump.iter().find(|one| one.identity.contains("/sa/server"));
    let state = &of_server.unwrap().state;
    assert!(state.contains("k8s:ns:ns and k8s:sa:server"), "{state}");
    agents.register(1, "server");
    agents.wait_for_certificate(1, "server", |_| true).await;
    pair.open().await.unwrap();
}
