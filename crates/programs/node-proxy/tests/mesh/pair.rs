//! Client pod on the first node, and server pod on the second one.

use std::{net::SocketAddr, sync::Arc};

use ambit_testkit::Pki;
use tokio::net::TcpStream;

use crate::fixture::{Mesh, Node, PodHost, read_line};

/// Client pod and server pod on different nodes.
pub(crate) struct Pair {
    pub(crate) mesh: Mesh,
    client: PodHost,
    address: SocketAddr,
    _server: PodHost,
}

impl Pair {
    /// Creates a pair whose pods are both captured, on two nodes of one mesh.
    pub(crate) async fn captured(pki: Arc<Pki>, nodes: Vec<Node>) -> Self {
        let mut mesh = Mesh::with_nodes(pki, nodes).await;
        let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
        let server = mesh.captured_pod(1, "server", "10.9.0.2").await;
        Self::new(mesh, client, server)
    }

    /// Creates a pair of pods in a mesh, and starts the server.
    pub(crate) fn new(mesh: Mesh, client: PodHost, server: PodHost) -> Self {
        server.serve_echo(8080);
        Self {
            mesh,
            client,
            address: SocketAddr::new(server.ip, 8080),
            _server: server,
        }
    }

    /// Opens a connection to the server, and waits for its first response.
    pub(crate) async fn open(&self) -> std::io::Result<TcpStream> {
        let mut stream = self.client.connect(self.address).await?;
        read_line(&mut stream).await?;
        Ok(stream)
    }
}
