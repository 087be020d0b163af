//! Test network: a bridge with pods, some of them captured by node proxies that run in this process.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use ambit_certificates::{Certificates, CertificatesOptions};
use ambit_handover::Gate;
use ambit_model::{PodName, Service, Workload};
use ambit_netlab::Host;
use ambit_netplan::RedirectionSpec;
use ambit_node_proxy::{
    config::Config,
    pod::{Pod, Proxy},
};
use ambit_proxy::{
    Workers,
    state::{MeshUpdate, SharedState, StateConfig},
};
use ambit_rt::Env;
use ambit_sys::{
    netns::Netns,
    socket::{self, OutboundSpec},
};
use ambit_telemetry::Metrics;
use ambit_testkit::{FakeCa, Pki};
use prometheus_client::registry::Registry;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// Timeout of every operation in these tests.
pub(crate) const OPERATION_TIMEOUT: Duration = Duration::from_secs(20);

/// Simulated node with a node proxy of two workers.
pub(crate) struct Node {
    pub(crate) proxy: Proxy,
    pub(crate) workers: Arc<Workers>,
    pub(crate) registry: Registry,
}

impl Node {
    pub(crate) fn new(pki: &Arc<Pki>, env: &[(&str, &str)]) -> Self {
        let ca = FakeCa::new(pki.clone(), Duration::from_secs(3600));
        let options = CertificatesOptions::default();
        Self::with_certificates(Certificates::start(Arc::new(ca), options), env)
    }

    pub(crate) fn with_certificates(certificates: Certificates, env: &[(&str, &str)]) -> Self {
        let config = Config::from_env(&Env::from_pairs(env.iter().copied())).unwrap();
        let mut registry = Registry::default();
        let metrics = Arc::new(Metrics::register(&mut registry));
        let state = StateConfig {
            trust_domain: config.trust_domain.clone(),
            ..Default::default()
        };
        let state = SharedState::new(state);
        state.mark_addresses_known();
        state.mark_policies_known();
        let proxy = Proxy {
            config: Arc::new(config),
            state,
            certificates,
            metrics,
            gate: Gate::default(),
        };
        Self {
            proxy,
            workers: Arc::new(Workers::start(2).unwrap()),
            registry,
        }
    }

    pub(crate) fn publish(&self, update: MeshUpdate) {
        self.proxy.state.apply(&mut vec![update]);
    }

    pub(crate) fn publish_all(&self, workloads: impl IntoIterator<Item = Workload>) {
        for workload in workloads {
            self.publish(MeshUpdate::Workload(Box::new(workload)));
        }
    }

    pub(crate) fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }
}

/// Pod with its network namespace, captured or not.
pub(crate) struct PodHost {
    pub(crate) host: Host,
    pub(crate) ip: std::net::IpAddr,
    pub(crate) name: String,
    pub(crate) pod: Option<Arc<Pod>>,
}

impl PodHost {
    pub(crate) fn netns(&self) -> &Netns {
        self.host.netns()
    }

    /// Opens a listening socket of the pod's application.
    pub(crate) fn listen(&self, port: u16) -> TcpListener {
        let any: SocketAddr = if self.ip.is_ipv6() {
            ([0u16; 8], port).into()
        } else {
            ([0, 0, 0, 0], port).into()
        };
        let listener = self
            .host
            .run(|| std::net::TcpListener::bind(any))
            .unwrap()
            .unwrap();
        listener.set_nonblocking(true).unwrap();
        TcpListener::from_std(listener).unwrap()
    }

    /// Opens a connection from the pod's application.
    pub(crate) async fn connect(&self, to: SocketAddr) -> std::io::Result<TcpStream> {
        let spec = OutboundSpec::default();
        let socket = socket::outbound(Some(self.netns()), to, &spec).unwrap();
        tokio::time::timeout(OPERATION_TIMEOUT, socket.connect(to))
            .await
            .expect("connecting takes for ever")
    }

    /// Starts an application that sends the peer's address on each connection, and then echoes.
    pub(crate) fn serve_echo(&self, port: u16) {
        let listener = self.listen(port);
        ambit_rt::spawn("echo", async move {
            while let Ok((mut stream, peer)) = listener.accept().await {
                ambit_rt::spawn("echo connection", async move {
                    let hello = format!("{}\n", peer.ip().to_canonical());
                    if stream.write_all(hello.as_bytes()).await.is_err() {
                        return;
                    }
                    let (mut read, mut write) = stream.split();
                    // Ends with the peer, by end of data or by reset.
                    let _ended = tokio::io::copy(&mut read, &mut write).await;
                    let _gone = write.shutdown().await;
                });
            }
        });
    }
}

/// Pods and node proxies on one bridge.
pub(crate) struct Mesh {
    pub(crate) pki: Arc<Pki>,
    pub(crate) nodes: Vec<Node>,
    bridge: Host,
    pod_count: u32,
}

impl Mesh {
    /// Creates a mesh of two nodes.
    pub(crate) async fn new() -> Self {
        Self::with_env(&[]).await
    }

    pub(crate) async fn with_env(env: &[(&str, &str)]) -> Self {
        Self::with_pki(Arc::new(Pki::new()), env).await
    }

    pub(crate) async fn with_pki(pki: Arc<Pki>, env: &[(&str, &str)]) -> Self {
        let nodes = vec![Node::new(&pki, env), Node::new(&pki, env)];
        Self::with_nodes(pki, nodes).await
    }

    /// Creates a mesh of these nodes.
    pub(crate) async fn with_nodes(pki: Arc<Pki>, nodes: Vec<Node>) -> Self {
        let bridge = Host::new("bridge").await.unwrap();
        bridge.add_bridge("br0").await.unwrap();
        bridge.bring_up("br0").await.unwrap();
        Self {
            pki,
            nodes,
            bridge,
            pod_count: 0,
        }
    }

    /// Adds a pod that is neither captured nor known to the mesh.
    pub(crate) async fn pod(&mut self, name: &str, ip: &str) -> PodHost {
        self.pod_count += 1;
        let host = Host::new(name).await.unwrap();
        let port = format!("v{}", self.pod_count);
        self.bridge.add_veth(&port, &host, "eth0").await.unwrap();
        self.bridge.attach_to_bridge(&port, "br0").await.unwrap();
        self.bridge.bring_up(&port).await.unwrap();
        let ip: std::net::IpAddr = ip.parse().unwrap();
        let prefix = if ip.is_ipv6() { 64 } else { 24 };
        host.add_address("eth0", format!("{ip}/{prefix}").parse().unwrap())
            .await
            .unwrap();
        host.bring_up("eth0").await.unwrap();
        PodHost {
            host,
            ip,
            name: name.to_owned(),
            pod: None,
        }
    }

    /// Adds a pod that this node's proxy captures, and that the mesh knows.
    pub(crate) async fn captured_pod(&mut self, node: usize, name: &str, ip: &str) -> PodHost {
        let mut pod = self.pod(name, ip).await;
        self.publish(MeshUpdate::Workload(Box::new(
            ambit_testkit::build::workload(name, &[ip]),
        )));
        self.capture(node, &mut pod);
        pod
    }

    /// Captures a pod by this node's proxy.
    pub(crate) fn capture(&self, node: usize, pod: &mut PodHost) {
        self.serve(node, pod);
        ambit_sys::redirection::apply(pod.netns(), &RedirectionSpec::default()).unwrap();
    }

    /// Lets this node's proxy listen in a pod, without redirection.
    pub(crate) fn serve(&self, node: usize, pod: &mut PodHost) {
        let node = &self.nodes[node];
        let name = PodName {
            name: pod.name.as_str().into(),
            namespace: "ns".into(),
            service_account: pod.name.as_str().into(),
        };
        let (served, listeners) = Pod::open(
            &node.proxy,
            format!("uid-{}", pod.name).into(),
            name,
            vec![pod.ip],
            pod.netns().clone(),
            Vec::new(),
            node.workers.count(),
        )
        .unwrap();
        served.serve(&node.workers, listeners);
        pod.pod = Some(served);
    }

    /// Applies an update of the mesh state at all nodes.
    pub(crate) fn publish(&self, update: MeshUpdate) {
        for node in &self.nodes {
            node.publish(update.clone());
        }
    }

    pub(crate) fn publish_workload(&self, workload: Workload) {
        self.publish(MeshUpdate::Workload(Box::new(workload)));
    }

    pub(crate) fn publish_service(&self, service: Service) {
        self.publish(MeshUpdate::Service(Box::new(service)));
    }
}

/// Reads one line from the stream, without its terminator.
pub(crate) async fn read_line(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut text = String::new();
    let reading = async {
        loop {
            match stream.read_u8().await? {
                b'\n' => return std::io::Result::Ok(()),
                byte => text.push(char::from(byte)),
            }
        }
    };
    tokio::time::timeout(OPERATION_TIMEOUT, reading)
        .await
        .expect("no line came")?;
    Ok(text)
}

/// Reads from the stream until the end of data; a reset is an error.
pub(crate) async fn read_until_end(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    tokio::time::timeout(OPERATION_TIMEOUT, stream.read_to_end(&mut bytes))
        .await
        .expect("no end came")?;
    Ok(bytes)
}
