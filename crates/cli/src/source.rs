//! Whose state a command shows: a node proxy's or a control plane's, at an address, inside a running
//! lab, or saved in a file.

use std::{
    fs,
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    path::PathBuf,
};

use ambit_lab::Place;

use crate::{CliError, ErrorKind, dump::Dump, http, lab};

/// Where node proxies serve their admin interface, in their own namespace.
const ADMIN: ([u8; 4], u16) = ([127, 0, 0, 1], 15000);
/// Where a control plane of ours serves its debug interface.
const DEBUG: ([u8; 4], u16) = ([127, 0, 0, 1], 15014);

/// Whom to ask.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Source {
    /// Admin address of a node proxy, or debug address of a control plane
    #[arg(long, default_value = "http://127.0.0.1:15000", env = "AMBIT_ADDRESS")]
    pub(crate) address: String,
    /// The node proxy of this node of a running lab
    #[arg(long, conflicts_with_all = ["pod", "control", "file"])]
    pub(crate) node: Option<String>,
    /// The node proxy that serves this pod of a running lab
    #[arg(long, conflicts_with_all = ["control", "file"])]
    pub(crate) pod: Option<String>,
    /// The control plane of a running lab
    #[arg(long, conflicts_with = "file")]
    pub(crate) control: bool,
    /// A dump saved before; `-` is standard input
    #[arg(long)]
    pub(crate) file: Option<PathBuf>,
    /// Which lab --node, --pod and --control mean
    #[arg(long, default_value = "default", env = "AMBIT_LAB")]
    pub(crate) lab: String,
}

/// A place that answers HTTP.
enum Endpoint {
    Url(String),
    Lab { place: Place, address: SocketAddr },
}

impl Source {
    /// The node proxy of a node of a running lab.
    pub(crate) fn node(lab: &str, node: &str) -> Self {
        Self {
            address: String::new(),
            node: Some(node.to_owned()),
            pod: None,
            control: false,
            file: None,
            lab: lab.to_owned(),
        }
    }

    /// Its state.
    pub(crate) fn dump(&self) -> Result<Dump, CliError> {
        if let Some(file) = &self.file {
            let read = match file.to_str() {
                Some("-") => std::io::read_to_string(std::io::stdin()),
                _ => fs::read_to_string(file),
            };
            let text = read.map_err(|error| {
                let what = format!("cannot read {}", file.display());
                CliError::new(ErrorKind::NotFound, what).because(error)
            })?;
            return Dump::parse(text.as_bytes());
        }
        let answer = self.ask("GET", "/config_dump")?;
        if answer.status == 404 {
            return Dump::parse(&self.succeed("GET", "/debug/ambientz")?);
        }
        Dump::parse(&checked(answer, "/config_dump")?)
    }

    /// Sends a request that must succeed; gives the body.
    pub(crate) fn succeed(&self, method: &str, path: &str) -> Result<Vec<u8>, CliError> {
        checked(self.ask(method, path)?, path)
    }

    fn ask(&self, method: &str, path: &str) -> Result<http::Answer, CliError> {
        let path = if self.control && path == "/config_dump" {
            "/debug/ambientz"
        } else {
            path
        };
        let endpoint = self.endpoint()?;
        let (stream, host, prefix) = match &endpoint {
            Endpoint::Url(url) => {
                let (host, prefix) = split_url(url)?;
                (connect(&host)?, host, prefix)
            }
            Endpoint::Lab { place, address } => {
                let stream = lab::find(&self.lab)?.dial(place.clone(), *address);
                (
                    stream.map_err(lab::client_error)?,
                    address.to_string(),
                    String::new(),
                )
            }
        };
        http::request(stream, method, &host, &format!("{prefix}{path}")).map_err(|error| {
            let what = format!("no answer to {method} {path} from {host}");
            CliError::new(ErrorKind::Unreachable, what).because(error)
        })
    }

    fn endpoint(&self) -> Result<Endpoint, CliError> {
        let proxy = |node: String| Endpoint::Lab {
            place: Place::Node(node),
            address: ADMIN.into(),
        };
        if self.control {
            return Ok(Endpoint::Lab {
                place: Place::Control,
                address: DEBUG.into(),
            });
        }
        if let Some(node) = &self.node {
            return Ok(proxy(node.clone()));
        }
        if let Some(pod) = &self.pod {
            let status = lab::find(&self.lab)?.status().map_err(lab::client_error)?;
            let name = pod.rsplit('/').next().unwrap_or(pod);
            let found = status
                .pods
                .iter()
                .find(|known| known.name == name || known.name.starts_with(&format!("{name}-")));
            let found = found.ok_or_else(|| {
                CliError::new(ErrorKind::NotFound, format!("the lab has no pod {pod:?}"))
            })?;
            return Ok(proxy(found.node.clone()));
        }
        Ok(Endpoint::Url(self.address.clone()))
    }
}

fn checked(answer: http::Answer, path: &str) -> Result<Vec<u8>, CliError> {
    if answer.status == 200 {
        return Ok(answer.body);
    }
    let text = String::from_utf8_lossy(&answer.body);
    let what = format!(
        "{path} answers with status {}: {}",
        answer.status,
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

fn connect(host: &str) -> Result<TcpStream, CliError> {
    let unreachable = |error: std::io::Error| {
        CliError::new(ErrorKind::Unreachable, format!("cannot connect to {host}"))
            .because(error)
            .hint("--address URL names another; `kubectl port-forward` reaches into a cluster")
            .hint("--node NODE, --pod POD or --control look into a running lab")
    };
    let address = host.to_socket_addrs().map_err(unreachable)?.next();
    let address = address.ok_or_else(|| unreachable(std::io::ErrorKind::NotFound.into()))?;
    TcpStream::connect_timeout(&address, std::time::Duration::from_secs(5)).map_err(unreachable)
}
