//! Node proxies and waypoints of a lab or a cluster, and connections to their admin ports. Users who may not forward
//! ports of the mesh's pods read through the control plane instead (`control_plane`).

use std::fmt;

use ambit_flow::Filter;
use ambit_flow_reader::{self as reader, OpenStream};
use ambit_install::{cluster::ClusterApi, object::name};
use ambit_k8s_api::{Pod, labels::GATEWAY_NAME};
use ambit_kube_kit::forward;
use ambit_lab::LabNetns;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{control_plane::ControlPlane, target::FlowTarget};
use crate::{
    CliError, ErrorKind,
    cluster::connect,
    install::install_error,
    labs,
    pod_access::{self, NODE_PROXY_ADMIN, pod_phase},
    source::{ADMIN_ADDRESS, into_tokio_stream},
    waypoint::GatewayObject,
};

/// Component whose flow events can be read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Proxy {
    /// The node proxy of a lab's node.
    Node(String),
    /// Pod of a waypoint or of a node proxy: namespace, name.
    Pod(String, String),
    /// Control plane of a cluster, which reads the events of all proxies.
    ControlPlane,
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => write!(f, "the proxy of node {node}"),
            Self::Pod(namespace, name) => write!(f, "pod {namespace}/{name}"),
            Self::ControlPlane => f.write_str("the control plane"),
        }
    }
}

/// Byte stream to an admin port, over any transport.
pub(crate) trait AdminStream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> AdminStream for T {}

/// Proxies of a lab or cluster, by the transport over which they are reached.
pub(crate) enum Proxies {
    /// Proxies of the lab of this name.
    Lab(String),
    /// Proxies of a cluster, by port forwarding; with the namespace of the mesh.
    Cluster(ClusterApi, String),
    /// Proxies of a cluster, through its control plane, since the user may not forward ports.
    ControlPlane(Box<ControlPlane>),
}

impl Proxies {
    /// Connects to the lab or cluster `place`; in a cluster, the user's rights decide between port forwarding and the
    /// control plane.
    pub(crate) async fn connect(place: &FlowTarget) -> Result<Self, CliError> {
        match place.target.lab_name(place.lab.as_deref()) {
            Some(lab) => Ok(Self::Lab(lab)),
            None => {
                let config = place.target.load_config().await?;
                let cluster = connect(config.clone())?;
                let mesh = place.target.mesh_namespace.clone();
                match pod_access::can_forward_ports(&cluster, &mesh).await? {
                    true => Ok(Self::Cluster(cluster, mesh)),
                    false => {
                        let control_plane = ControlPlane::connect(config, cluster, mesh).await?;
                        Ok(Self::ControlPlane(Box::new(control_plane)))
                    }
                }
            }
        }
    }

    /// Lists the components whose events are read: the running proxies, or the control plane in their place.
    pub(crate) async fn list(&self) -> Result<Vec<Proxy>, CliError> {
        match self {
            Self::Lab(lab) => {
                let lab = lab.clone();
                run_blocking(move || lab_proxies(&lab)).await
            }
            Self::Cluster(cluster, namespace) => cluster_proxies(cluster, namespace).await,
            Self::ControlPlane(_) => Ok(vec![Proxy::ControlPlane]),
        }
    }

    /// Checks that the user may read the events that `filter` matches.
    pub(super) async fn check(&self, filter: &Filter) -> Result<(), CliError> {
        match self {
            Self::ControlPlane(control_plane) => control_plane.check(filter).await,
            Self::Lab(_) | Self::Cluster(..) => Ok(()),
        }
    }

    /// Sends a GET request for a path to a proxy's admin port, or to the control plane.
    async fn request(&self, proxy: &Proxy, path: &str) -> Result<OpenStream, CliError> {
        if let Self::ControlPlane(control_plane) = self {
            return control_plane.request(path).await;
        }
        let stream = self.connect_to_admin_port(proxy).await?;
        reader::request(stream, path).await.map_err(|error| {
            let what = format!("{proxy} does not answer");
            CliError::new(ErrorKind::Unreachable, what).with_source(error)
        })
    }

    /// Connects to the admin port of a proxy.
    async fn connect_to_admin_port(&self, proxy: &Proxy) -> Result<Box<dyn AdminStream>, CliError> {
        let not_there = || {
            let what = format!("{proxy} has no admin port");
            CliError::new(ErrorKind::NotFound, what)
        };
        match self {
            Self::ControlPlane(_) => Err(not_there()),
            Self::Lab(lab) => {
                let (lab, place) = (lab.clone(), lab_netns(proxy).ok_or_else(not_there)?);
                let dialled = run_blocking(move || {
                    let stream = labs::find_lab(&lab)?.dial(place, ADMIN_ADDRESS.into());
                    stream.map_err(labs::client_error)
                });
                let stream = dialled.await?;
                let stream = into_tokio_stream(stream).map_err(|error| {
                    let what = format!("{proxy} cannot be reached");
                    CliError::new(ErrorKind::Unreachable, what).with_source(error)
                })?;
                Ok(Box::new(stream))
            }
            Self::Cluster(cluster, mesh) => {
                let (namespace, pod) = match proxy {
                    Proxy::Pod(namespace, pod) => (namespace, pod),
                    Proxy::Node(node) => (mesh, node),
                    Proxy::ControlPlane => return Err(not_there()),
                };
                let dialled =
                    forward::open_port_forward(&cluster.client(), namespace, pod, ADMIN_ADDRESS.1)
                        .await;
                let (stream, _) = dialled.map_err(|error| {
                    let what = format!("{proxy} cannot be reached");
                    let error = CliError::new(ErrorKind::Unreachable, what).with_source(error);
                    error.with_hint("reading flows takes the right to forward ports of that pod")
                })?;
                Ok(Box::new(stream))
            }
        }
    }
}

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CliError> + Send + 'static,
) -> Result<T, CliError> {
    let done = ambit_rt::spawn_blocking("lab", work).await;
    done.map_err(|error| {
        CliError::new(ErrorKind::Failed, "cannot query the lab").with_source(error)
    })?
}

impl reader::ProxyConnector for Proxies {
    type Proxy = Proxy;

    async fn list(&self) -> Result<Vec<Proxy>, String> {
        self.list().await.map_err(|error| error.to_string())
    }

    async fn open(&self, proxy: &Proxy, path: &str) -> Result<OpenStream, String> {
        let opened = self.request(proxy, path).await;
        opened.map_err(|error| error.to_string())
    }
}

fn lab_netns(proxy: &Proxy) -> Option<LabNetns> {
    match proxy {
        Proxy::Node(node) => Some(LabNetns::Node(node.clone())),
        Proxy::Pod(namespace, name) => Some(LabNetns::Pod(format!("{namespace}/{name}"))),
        Proxy::ControlPlane => None,
    }
}

fn lab_proxies(lab: &str) -> Result<Vec<Proxy>, CliError> {
    let status = labs::find_lab(lab)?.status().map_err(labs::client_error)?;
    if !status.mesh {
        let what = format!("the lab {lab} runs pods without the mesh");
        return Err(CliError::new(ErrorKind::NotFound, what));
    }
    let nodes = status.nodes.into_iter().map(|node| Proxy::Node(node.name));
    let gateways: Vec<_> = status
        .gateways
        .into_iter()
        .map(GatewayObject::new)
        .collect();
    let is_waypoint = |pod: &ambit_lab::PodStatus| {
        let mut gateways = gateways.iter();
        gateways.any(|gateway| gateway.is_waypoint() && gateway.has_pod(pod))
    };
    let pods = status
        .pods
        .into_iter()
        .filter(|pod| pod.ready && is_waypoint(pod));
    let pods = pods.map(|pod| Proxy::Pod(pod.namespace, pod.name));
    Ok(nodes.chain(pods).collect())
}

async fn cluster_proxies(cluster: &ClusterApi, mesh: &str) -> Result<Vec<Proxy>, CliError> {
    let proxies = pod_access::list_pods(cluster, mesh, NODE_PROXY_ADMIN.0).await?;
    let waypoints: Vec<Pod> = cluster
        .list_typed(None, Some(GATEWAY_NAME))
        .await
        .map_err(|error| install_error(error.into()))?;
    let running = proxies.iter().chain(&waypoints);
    let running = running.filter(|pod| pod_phase(pod) == "Running");
    Ok(running
        .map(|pod| {
            let namespace = pod.metadata.namespace.clone().unwrap_or_default();
            Proxy::Pod(namespace, name(pod).to_owned())
        })
        .collect())
}
