//! Node proxies and waypoints of a lab or a cluster, and connections to their admin ports. Users who may not forward
//! ports of the mesh's pods read through the control plane instead (`control_plane`).

use std::fmt;

use ambit_flow::Filter;
use ambit_flow_reader::{self as reader, Opened};
use ambit_install::{cluster::Cluster, object::name};
use ambit_k8s_api::{Pod, labels::GATEWAY_NAME};
use ambit_kube_kit::forward;
use ambit_lab::LabNetns;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{control_plane::ControlPlane, place::FlowPlace};
use crate::{
    CliError, ErrorKind,
    cluster::connect,
    install::failed,
    labs,
    reach::{self, PROXY, phase},
    source::{ADMIN, asynchronous},
    waypoint::Seen,
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
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Proxies of a lab or cluster, and the way to reach them.
pub(crate) enum Proxies {
    /// Proxies of the lab of this name.
    Lab(String),
    /// Proxies of a cluster, by port forwarding; with the namespace of the mesh.
    Cluster(Cluster, String),
    /// Proxies of a cluster, through its control plane, since the user may not forward ports.
    Confined(Box<ControlPlane>),
}

impl Proxies {
    /// Selects the lab or cluster, and in a cluster port forwarding or the control plane by the user's rights.
    pub(crate) async fn of(place: &FlowPlace) -> Result<Self, CliError> {
        match place.target.lab(place.lab.as_deref()) {
            Some(lab) => Ok(Self::Lab(lab)),
            None => {
                let config = place.target.config().await?;
                let cluster = connect(config.clone())?;
                let mesh = place.target.mesh_namespace.clone();
                match reach::may_forward(&cluster, &mesh).await? {
                    true => Ok(Self::Cluster(cluster, mesh)),
                    false => {
                        let control_plane = ControlPlane::of(config, cluster, mesh).await?;
                        Ok(Self::Confined(Box::new(control_plane)))
                    }
                }
            }
        }
    }

    /// Lists the components to read: the running proxies, or the control plane in their place.
    pub(crate) async fn list(&self) -> Result<Vec<Proxy>, CliError> {
        match self {
            Self::Lab(lab) => {
                let lab = lab.clone();
                blocking(move || of_lab(&lab)).await
            }
            Self::Cluster(cluster, namespace) => of_cluster(cluster, namespace).await,
            Self::Confined(_) => Ok(vec![Proxy::ControlPlane]),
        }
    }

    /// Checks that the user may read the events that `filter` matches.
    pub(super) async fn check(&self, filter: &Filter) -> Result<(), CliError> {
        match self {
            Self::Confined(control_plane) => control_plane.check(filter).await,
            Self::Lab(_) | Self::Cluster(..) => Ok(()),
        }
    }

    /// Sends a GET request for a path to a proxy's admin port, or to the control plane.
    async fn request(&self, proxy: &Proxy, path: &str) -> Result<Opened, CliError> {
        if let Self::Confined(control_plane) = self {
            return control_plane.request(path).await;
        }
        let stream = self.dial(proxy).await?;
        reader::request(stream, path).await.map_err(|error| {
            let what = format!("{proxy} does not answer");
            CliError::new(ErrorKind::Unreachable, what).because(error)
        })
    }

    /// Connects to the admin port of a proxy.
    async fn dial(&self, proxy: &Proxy) -> Result<Box<dyn Stream>, CliError> {
        let not_there = || {
            let what = format!("{proxy} has no admin port");
            CliError::new(ErrorKind::NotFound, what)
        };
        match self {
            Self::Confined(_) => Err(not_there()),
            Self::Lab(lab) => {
                let (lab, place) = (lab.clone(), place(proxy).ok_or_else(not_there)?);
                let dialled = blocking(move || {
                    let stream = labs::find(&lab)?.dial(place, ADMIN.into());
                    stream.map_err(labs::client_error)
                });
                let stream = dialled.await?;
                let stream = asynchronous(stream).map_err(|error| {
                    let what = format!("{proxy} cannot be reached");
                    CliError::new(ErrorKind::Unreachable, what).because(error)
                })?;
                Ok(Box::new(stream))
            }
            Self::Cluster(cluster, mesh) => {
                let (namespace, pod) = match proxy {
                    Proxy::Pod(namespace, pod) => (namespace, pod),
                    Proxy::Node(node) => (mesh, node),
                    Proxy::ControlPlane => return Err(not_there()),
                };
                let dialled = forward::dial(&cluster.client(), namespace, pod, ADMIN.1).await;
                let (stream, _) = dialled.map_err(|error| {
                    let what = format!("{proxy} cannot be reached");
                    let error = CliError::new(ErrorKind::Unreachable, what).because(error);
                    error.hint("reading flows takes the right to forward ports of that pod")
                })?;
                Ok(Box::new(stream))
            }
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CliError> + Send + 'static,
) -> Result<T, CliError> {
    let done = ambit_rt::spawn_blocking("lab", work).await;
    done.map_err(|error| CliError::new(ErrorKind::Failed, "cannot query the lab").because(error))?
}

impl reader::Proxies for Proxies {
    type Proxy = Proxy;

    async fn list(&self) -> Result<Vec<Proxy>, String> {
        self.list().await.map_err(|error| error.to_string())
    }

    async fn open(&self, proxy: &Proxy, path: &str) -> Result<Opened, String> {
        let opened = self.request(proxy, path).await;
        opened.map_err(|error| error.to_string())
    }
}

fn place(proxy: &Proxy) -> Option<LabNetns> {
    match proxy {
        Proxy::Node(node) => Some(LabNetns::Node(node.clone())),
        Proxy::Pod(namespace, name) => Some(LabNetns::Pod(format!("{namespace}/{name}"))),
        Proxy::ControlPlane => None,
    }
}

fn of_lab(lab: &str) -> Result<Vec<Proxy>, CliError> {
    let status = labs::find(lab)?.status().map_err(labs::client_error)?;
    if !status.mesh {
        let what = format!("the lab {lab} runs pods without the mesh");
        return Err(CliError::new(ErrorKind::NotFound, what));
    }
    let nodes = status.nodes.into_iter().map(|node| Proxy::Node(node.name));
    let gateways: Vec<_> = status.gateways.into_iter().map(Seen::new).collect();
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

async fn of_cluster(cluster: &Cluster, mesh: &str) -> Result<Vec<Proxy>, CliError> {
    let proxies = reach::pods(cluster, mesh, PROXY.0).await?;
    let waypoints: Vec<Pod> = cluster
        .all(None, Some(GATEWAY_NAME))
        .await
        .map_err(|error| failed(error.into()))?;
    let running = proxies.iter().chain(&waypoints);
    let running = running.filter(|pod| phase(pod) == "Running");
    Ok(running
        .map(|pod| {
            let namespace = pod.metadata.namespace.clone().unwrap_or_default();
            Proxy::Pod(namespace, name(pod).to_owned())
        })
        .collect())
}
