//! Source of the state that a command shows: a node proxy or a control plane, at an address, in a cluster, in a running
//! lab, or saved in a file. Without flags it is a node proxy of the kubeconfig's cluster, and the command prints which
//! one.

use std::{
    collections::BTreeSet,
    fs,
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    path::PathBuf,
};

use ambit_install::rollout::node_of;
use ambit_lab::LabNetns;
use bytes::Bytes;
use hyper::Method;

use crate::{
    CliError, ErrorKind,
    cluster::{Target, block_on},
    dump::Dump,
    http,
    install::print_progress,
    labs,
    pod_access::{self, Component},
};

/// Address of the admin interface of node proxies and waypoints, in their own network namespace.
pub(crate) const ADMIN_ADDRESS: ([u8; 4], u16) = ([127, 0, 0, 1], 15000);
/// Path of the configuration dump on the admin interface.
pub(crate) const CONFIG_DUMP_PATH: &str = "/config_dump";
/// Address of the control plane's debug interface.
const DEBUG_ADDRESS: ([u8; 4], u16) = ([127, 0, 0, 1], 15014);

/// Source of the state that a command shows, from its flags.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Source {
    /// Admin address of a node proxy, or debug address of a control plane
    #[arg(long, env = "AMBIT_ADDRESS")]
    pub(crate) address: Option<String>,
    /// The node proxy of this node; found by itself if left out
    #[arg(long, conflicts_with_all = ["pod", "control", "file"])]
    pub(crate) node: Option<String>,
    /// The node proxy that serves this pod (namespace/name)
    #[arg(long, conflicts_with_all = ["control", "file"])]
    pub(crate) pod: Option<String>,
    /// The control plane
    #[arg(long, conflicts_with = "file")]
    pub(crate) control: bool,
    /// A dump saved before; `-` is standard input
    #[arg(long)]
    pub(crate) file: Option<PathBuf>,
    /// Of this lab; otherwise of the kubeconfig's cluster
    #[arg(long, env = "AMBIT_LAB")]
    pub(crate) lab: Option<String>,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Whether the command does not print which component it queries.
    #[arg(skip)]
    is_quiet: bool,
}

/// HTTP endpoint of the component from which the state is fetched.
enum Endpoint {
    Url(String),
    Lab {
        lab: String,
        place: LabNetns,
        address: SocketAddr,
    },
    Cluster(Component),
}

impl Source {
    /// Creates a source for any node proxy of the lab or cluster; [`Self::all_node_proxies`] turns it into one source
    /// for each node. The command does not print which proxy it queries.
    pub(crate) fn any_node_proxy(lab: Option<&str>, target: &Target) -> Self {
        Self {
            address: None,
            node: None,
            pod: None,
            control: false,
            file: None,
            lab: lab.map(ToOwned::to_owned),
            target: target.clone(),
            is_quiet: true,
        }
    }

    /// Creates the source for the node proxy of one node of a running lab.
    pub(crate) fn lab_node_proxy(lab: &str, node: &str) -> Self {
        Self {
            node: Some(node.to_owned()),
            ..Self::any_node_proxy(Some(lab), &Target::default())
        }
    }

    /// Returns the source for the control plane of the same lab or cluster.
    pub(crate) fn control_plane(&self) -> Self {
        Self {
            control: true,
            ..self.clone()
        }
    }

    /// Creates the source for the control plane of a running lab.
    pub(crate) fn lab_control_plane(lab: &str) -> Self {
        Self {
            node: None,
            control: true,
            ..Self::lab_node_proxy(lab, "")
        }
    }

    /// Whether no flag selects a component, address or file.
    pub(crate) fn is_unspecified(&self) -> bool {
        let place = (&self.address, &self.node, &self.pod, &self.file);
        matches!(place, (None, None, None, None)) && !self.control
    }

    /// Returns the source for the node proxy of one node of the same lab or cluster.
    pub(crate) fn at_node(&self, node: &str) -> Self {
        Self {
            node: Some(node.to_owned()),
            ..self.clone()
        }
    }

    /// Returns the source that the flags select; without such flags, one source for the node proxy of each node.
    pub(crate) fn all_node_proxies(&self) -> Result<Vec<Self>, CliError> {
        if !self.is_unspecified() {
            return Ok(vec![self.clone()]);
        }
        let nodes: BTreeSet<String> = match self.lab_name() {
            Some(lab) => lab_nodes(&lab)?.into_iter().collect(),
            None => block_on(async {
                let cluster = self.target.connect().await?;
                let namespace = &self.target.mesh_namespace;
                let pods =
                    pod_access::list_pods(&cluster, namespace, pod_access::NODE_PROXY_ADMIN.0)
                        .await?;
                let nodes = pods.iter().filter_map(|pod| node_of(pod));
                Ok(nodes.map(ToOwned::to_owned).collect())
            })?,
        };
        Ok(nodes.iter().map(|node| self.at_node(node)).collect())
    }

    /// Fetches the `/config_dump` of the source, or the `/debug/ambientz` of a control plane, or reads it from the
    /// file.
    pub(crate) fn load_dump(&self) -> Result<Dump, CliError> {
        if let Some(file) = &self.file {
            let read = match file.to_str() {
                Some("-") => std::io::read_to_string(std::io::stdin()),
                _ => fs::read_to_string(file),
            };
            let text = read.map_err(|error| {
                let what = format!("cannot read {}", file.display());
                CliError::new(ErrorKind::NotFound, what).with_source(error)
            })?;
            return Dump::parse(text.as_bytes());
        }
        let answer = self.request(Method::GET, CONFIG_DUMP_PATH)?;
        if answer.status == 404 {
            return Dump::parse(&self.request_ok(Method::GET, "/debug/ambientz")?);
        }
        Dump::parse(&require_ok(answer, CONFIG_DUMP_PATH)?)
    }

    /// Sends a request without a body, and returns the response body; any status but 200 is an error.
    pub(crate) fn request_ok(&self, method: Method, path: &str) -> Result<Vec<u8>, CliError> {
        require_ok(self.request(method, path)?, path)
    }

    fn request(&self, method: Method, path: &str) -> Result<http::HttpResponse, CliError> {
        self.send(method, path, Bytes::new())
    }

    /// Sends a request with a body, and returns the response of any status.
    pub(crate) fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<http::HttpResponse, CliError> {
        let path = if self.control && path == CONFIG_DUMP_PATH {
            "/debug/ambientz"
        } else {
            path
        };
        let (stream, host, prefix) = match self.endpoint()? {
            Endpoint::Url(url) => {
                let (host, prefix) = split_url(&url)?;
                (connect(&host)?, host, prefix)
            }
            Endpoint::Lab {
                lab,
                place,
                address,
            } => {
                self.print_queried(&match &place {
                    LabNetns::Node(node) => format!("lab {lab}, node {node}"),
                    _ => format!("lab {lab}, control plane"),
                });
                let stream = labs::find_lab(&lab)?.dial(place, address);
                (
                    stream.map_err(labs::client_error)?,
                    address.to_string(),
                    String::new(),
                )
            }
            Endpoint::Cluster(part) => {
                return block_on(async {
                    let cluster = self.target.connect().await?;
                    let namespace = &self.target.mesh_namespace;
                    let (pod, port) = pod_access::find_pod(&cluster, namespace, &part).await?;
                    self.print_queried(&format!(
                        "{}, pod {namespace}/{pod}",
                        self.target.describe()
                    ));
                    pod_access::send_to_pod(&cluster, (namespace, &pod, port), (method, path), body)
                        .await
                });
            }
        };
        send_blocking(stream, &method, (&host, &format!("{prefix}{path}")), body)
    }

    /// Prints to standard error which component is queried.
    fn print_queried(&self, component: &str) {
        if !self.is_quiet {
            print_progress(&format!("querying {component}"));
        }
    }

    fn endpoint(&self) -> Result<Endpoint, CliError> {
        let is_placed = self.node.is_some() || self.pod.is_some() || self.control;
        if let Some(address) = self.address.as_ref().filter(|_| !is_placed) {
            return Ok(Endpoint::Url(address.clone()));
        }
        let Some(lab) = self.lab_name() else {
            return Ok(Endpoint::Cluster(self.component()));
        };
        let place = match (&self.node, &self.pod) {
            (Some(node), _) => LabNetns::Node(node.clone()),
            (None, Some(pod)) => LabNetns::Node(node_of_pod(&lab, pod)?),
            (None, None) if self.control => LabNetns::Control,
            (None, None) => {
                LabNetns::Node(lab_nodes(&lab)?.into_iter().next().ok_or_else(|| {
                    CliError::new(ErrorKind::NotFound, format!("the lab {lab} has no node"))
                })?)
            }
        };
        let address = match place {
            LabNetns::Control => DEBUG_ADDRESS.into(),
            _ => ADMIN_ADDRESS.into(),
        };
        Ok(Endpoint::Lab {
            lab,
            place,
            address,
        })
    }

    /// Returns the lab, if any, and the cluster that have the objects of the source; `None` if the source is a file or
    /// an address.
    pub(crate) fn lab_and_cluster(&self) -> Option<(Option<String>, &Target)> {
        let is_placed = self.node.is_some() || self.pod.is_some() || self.control;
        let is_known = self.file.is_none() && (self.address.is_none() || is_placed);
        is_known.then(|| (self.lab_name(), &self.target))
    }

    /// Returns the lab that the flags select, if any.
    pub(crate) fn lab_name(&self) -> Option<String> {
        self.target.lab_name(self.lab.as_deref())
    }

    fn component(&self) -> Component {
        match (&self.node, &self.pod) {
            (Some(node), _) => Component::NodeProxy(node.clone()),
            (None, Some(pod)) => {
                let (namespace, name) = pod.split_once('/').unwrap_or(("default", pod));
                Component::NodeProxyOfPod(namespace.to_owned(), name.to_owned())
            }
            (None, None) if self.control => Component::ControlPlane,
            (None, None) => Component::AnyNodeProxy,
        }
    }
}

/// Lists the nodes of a lab; an error if the lab runs without the mesh.
fn lab_nodes(lab: &str) -> Result<Vec<String>, CliError> {
    let status = labs::find_lab(lab)?.status().map_err(labs::client_error)?;
    if !status.mesh {
        let what = format!("the lab {lab} runs pods without the mesh");
        return Err(CliError::new(ErrorKind::NotFound, what));
    }
    Ok(status.nodes.into_iter().map(|node| node.name).collect())
}

fn node_of_pod(lab: &str, pod: &str) -> Result<String, CliError> {
    let status = labs::find_lab(lab)?.status().map_err(labs::client_error)?;
    let name = pod.rsplit('/').next().unwrap_or(pod);
    let found = status
        .pods
        .iter()
        .find(|known| known.name == name || known.name.starts_with(&format!("{name}-")));
    let found = found
        .ok_or_else(|| CliError::new(ErrorKind::NotFound, format!("the lab has no pod {pod:?}")))?;
    Ok(found.node.clone())
}

pub(crate) fn require_ok(response: http::HttpResponse, path: &str) -> Result<Vec<u8>, CliError> {
    if response.status == 200 {
        return Ok(response.body);
    }
    let text = String::from_utf8_lossy(&response.body);
    let what = format!(
        "{path} answers with status {}: {}",
        response.status,
        text.trim()
    );
    Err(CliError::new(ErrorKind::Failed, what))
}

fn split_url(url: &str) -> Result<(String, String), CliError> {
    let rest = match url.split_once("://") {
        Some(("http", rest)) => rest,
        Some(_) => {
            let what = format!("--address {url}: only http:// is served by admin interfaces");
            return Err(CliError::new(ErrorKind::Usage, what));
        }
        None => url,
    };
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let path = path.trim_end_matches('/');
    let prefix = if path.is_empty() {
        String::new()
    } else {
        format!("/{path}")
    };
    Ok((host.to_owned(), prefix))
}

/// Sends a request without a body over an open connection.
pub(crate) fn request_blocking(
    stream: TcpStream,
    method: &Method,
    host: &str,
    path: &str,
) -> Result<http::HttpResponse, CliError> {
    send_blocking(stream, method, (host, path), Bytes::new())
}

/// Sends a request with a body over an open connection.
pub(crate) fn send_blocking(
    stream: TcpStream,
    method: &Method,
    (host, path): (&str, &str),
    body: Bytes,
) -> Result<http::HttpResponse, CliError> {
    block_on(async {
        let unanswered = |error: Box<dyn std::error::Error + Send + Sync>| {
            let what = format!("no answer to {method} {path} from {host}");
            CliError::new(ErrorKind::Unreachable, what).with_source(error)
        };
        let stream = into_tokio_stream(stream).map_err(|error| unanswered(error.into()))?;
        let answer = http::send(stream, method.clone(), (host, path), body).await;
        answer.map_err(|error| unanswered(error.into()))
    })
}

/// Converts a blocking stream to a tokio stream of the current runtime.
pub(crate) fn into_tokio_stream(stream: TcpStream) -> std::io::Result<tokio::net::TcpStream> {
    stream.set_nonblocking(true)?;
    tokio::net::TcpStream::from_std(stream)
}

fn connect(host: &str) -> Result<TcpStream, CliError> {
    let unreachable = |error: std::io::Error| {
        CliError::new(ErrorKind::Unreachable, format!("cannot connect to {host}"))
            .with_source(error)
            .with_hint("--address URL names another address")
    };
    let address = host.to_socket_addrs().map_err(unreachable)?.next();
    let address = address.ok_or_else(|| unreachable(std::io::ErrorKind::NotFound.into()))?;
    TcpStream::connect_timeout(&address, std::time::Duration::from_secs(5)).map_err(unreachable)
}
