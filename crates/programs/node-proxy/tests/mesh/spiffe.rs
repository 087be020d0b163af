//! Pods whose certificates come from SPIRE's agent of their node.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use ambit_certificates::{Certificates, CertificatesOptions, DelegatedIdentity};
use ambit_model::Identity;
use ambit_testkit::{Pki, SpiffeAgent, build, until};
use ambit_tls::TlsSettings;
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::fixture::{Mesh, Node, PodHost, line};

const HOUR: Duration = Duration::from_secs(3600);

fn id(account: &str) -> Identity {
    build::identity("ns", account)
}

/// A client on the first node and a server on the second one, each node with an agent of its own.
struct Pair {
    mesh: Mesh,
    agents: [SpiffeAgent; 2],
    client: PodHost,
    _server: PodHost,
    address: SocketAddr,
}

impl Pair {
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
        let mut mesh = Mesh::with_nodes(pki, nodes).await;
        let client = mesh.captured(0, "client", "10.9.0.1").await;
        let server = mesh.captured(1, "server", "10.9.0.2").await;
        server.echo(8080);
        Self {
            mesh,
            agents,
            client,
            address: SocketAddr::new(server.ip, 8080),
            _server: server,
        }
    }

    fn register(&self, node: usize, account: &str) {
        let svid = self.mesh.pki.svid(&id(account), HOUR);
        self.agents[node].change(|entries| entries.delegate(&id(account), svid, &[]));
    }

    /// Waits until the node has this certificate.
    async fn has(&self, node: usize, account: &str, is_it: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let certificates = &self.mesh.nodes[node].proxy.certificates;
        certificates.prefetch(&id(account));
        let leaf = || Some(certificates.peek(&id(account))?.chain().first()?.to_vec());
        until("the certificate", || {
            leaf().is_some_and(|leaf| is_it(&leaf))
        })
        .await;
        leaf().unwrap()
    }

    async fn open(&self) -> std::io::Result<TcpStream> {
        let mut stream = self.client.connect(self.address).await?;
        line(&mut stream).await?;
        Ok(stream)
    }
}

#[tokio::test]
async fn connections_go_on_while_svids_are_rotated() {
    let pair = Pair::new().await;
    pair.register(0, "client");
    pair.register(1, "server");
    let first = pair.has(0, "client", |_| true).await;
    pair.has(1, "server", |_| true).await;
    let mut stream = pair.open().await.unwrap();
    pair.register(0, "client");
    pair.register(1, "server");
    pair.has(0, "client", |leaf| leaf != first).await;
    stream.write_all(b"on the old one\n").await.unwrap();
    assert_eq!(line(&mut stream).await.unwrap(), "on the old one");
    pair.open().await.unwrap();
}

#[tokio::test]
async fn pods_without_registration_entry_get_no_plaintext() {
    let pair = Pair::new().await;
    pair.register(0, "client");
    assert!(pair.open().await.is_err());
    let dump = pair.mesh.nodes[1].proxy.certificates.dump();
    let of_server = dump.iter().find(|one| one.identity.contains("/sa/server"));
    let state = &of_server.unwrap().state;
    assert!(state.contains("k8s:ns:ns and k8s:sa:server"), "{state}");
    pair.register(1, "server");
    pair.has(1, "server", |_| true).await;
    pair.open().await.unwrap();
}
