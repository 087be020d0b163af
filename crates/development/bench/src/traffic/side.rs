//! Pods between which traffic is measured: pairs of client and server outside of the mesh, behind plain relays, in
//! Ambit's mesh, and behind another node proxy.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::rig::{BenchLab, nginx_configuration};

/// Environment variable with the path of another node proxy, such as Istio's, that is measured beside Ambit's.
const NODE_PROXY: &str = "AMBIT_BENCH_NODE_PROXY";

/// Ports of the server's pod: nginx and iperf3, and the relay before each.
const WEB: u16 = 8080;
const BULK: u16 = 5201;
const RELAYED_WEB: u16 = 9080;
const RELAYED_BULK: u16 = 9201;

/// Nodes of client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    OneNode,
    TwoNodes,
}

impl Placement {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::OneNode => "one node",
            Self::TwoNodes => "two nodes",
        }
    }

    /// Selects the result of Istio's node proxy with this placement: ratios to no mesh, or values in microseconds. They
    /// are reported if its program is not given.
    pub(super) fn of(self, one_node: f64, two_nodes: f64) -> f64 {
        match self {
            Self::OneNode => one_node,
            Self::TwoNodes => two_nodes,
        }
    }
}

/// Lab with the pods of all sides.
pub(super) struct Lab {
    rig: BenchLab,
    has_other: bool,
    scratch: tempfile::TempDir,
}

/// Client and server that are measured.
pub(super) struct Side<'a> {
    rig: &'a BenchLab,
    client: String,
    /// URL that the HTTP client requests.
    pub(super) url: String,
    /// Address and port of iperf3's server, as the client connects to it.
    pub(super) iperf: (String, u16),
    /// Process IDs of the node proxies of both ends.
    pub(super) proxies: Vec<u32>,
}

/// All sides with one placement.
pub(super) struct Sides<'a> {
    pub(super) plain: Side<'a>,
    pub(super) relay: Side<'a>,
    pub(super) mesh: Side<'a>,
    pub(super) existing: Option<Side<'a>>,
}

impl Side<'_> {
    /// Runs a program in the client's pod and returns its output.
    pub(super) fn exec(&self, command: &[String]) -> Result<String> {
        self.rig.exec(&self.client, command)
    }
}

impl Lab {
    /// Starts the lab and waits until the mesh's pods are captured. Ambit's node proxies run on the first two nodes,
    /// the other node proxy, if there is one, on two more.
    pub(super) fn up() -> Result<Self> {
        let scratch = tempfile::tempdir()?;
        let other = std::env::var_os(NODE_PROXY).map(PathBuf::from);
        let mut sides = vec![
            ("plain", "none", 1),
            ("relay", "none", 1),
            ("mesh", "ambient", 1),
        ];
        if other.is_some() {
            sides.push(("existing", "ambient", 3));
        }
        let mut manifests = String::new();
        for (namespace, mode, first_node) in &sides {
            manifests += &namespace_of(scratch.path(), namespace, mode, *first_node)?;
        }
        let files = [("rig.yaml".to_owned(), manifests)];
        let nodes = if other.is_some() { 4 } else { 2 };
        let others = other
            .iter()
            .flat_map(|program| ["node-3", "node-4"].map(|node| (node.to_owned(), program.clone())))
            .collect();
        let rig = BenchLab::up_with_nodes(&files, nodes, others)?;
        rig.wait_until("the mesh's pods captured", |status| {
            status
                .pods
                .iter()
                .all(|pod| pod.captured == matches!(&*pod.namespace, "mesh" | "existing"))
        })?;
        let lab = Self {
            rig,
            has_other: other.is_some(),
            scratch,
        };
        lab.start_clients_of_relays()?;
        Ok(lab)
    }

    /// Starts the clients behind relays, whose configurations have the servers' addresses.
    fn start_clients_of_relays(&self) -> Result<()> {
        let directory = self.scratch.path();
        let mut manifests = String::new();
        for placement in [Placement::OneNode, Placement::TwoNodes] {
            let server = self.rig.address("relay", server_name(placement))?;
            let name = format!("client-of-{}", server_name(placement));
            let relays = [
                (
                    format!("127.0.0.1:{RELAYED_WEB}"),
                    format!("{server}:{RELAYED_WEB}"),
                ),
                (
                    format!("127.0.0.1:{RELAYED_BULK}"),
                    format!("{server}:{RELAYED_BULK}"),
                ),
            ];
            let relay = relay_configuration(directory, &name, &relays)?;
            manifests += &pod(
                "relay",
                &name,
                1,
                &[container("relay", &["nginx", "-c", &relay])],
            );
        }
        self.rig.apply("clients.yaml", &manifests)?;
        self.rig
            .wait_until("the clients behind relays ready", |status| {
                let clients = status
                    .pods
                    .iter()
                    .filter(|pod| pod.name.starts_with("client-of-"));
                clients.filter(|pod| pod.ready).count() == 2
            })?;
        Ok(())
    }

    /// Returns the clients and servers with one placement.
    pub(super) fn sides(&self, placement: Placement) -> Result<Sides<'_>> {
        let relay = Side {
            rig: &self.rig,
            client: format!("relay/client-of-{}", server_name(placement)),
            url: format!("http://127.0.0.1:{RELAYED_WEB}/"),
            iperf: ("127.0.0.1".to_owned(), RELAYED_BULK),
            proxies: Vec::new(),
        };
        Ok(Sides {
            plain: self.side("plain", placement, Vec::new())?,
            relay,
            mesh: self.side("mesh", placement, self.proxies(1, placement)?)?,
            existing: self
                .has_other
                .then(|| self.side("existing", placement, self.proxies(3, placement)?))
                .transpose()?,
        })
    }

    fn side(&self, namespace: &str, placement: Placement, proxies: Vec<u32>) -> Result<Side<'_>> {
        let server = self.rig.address(namespace, server_name(placement))?;
        Ok(Side {
            rig: &self.rig,
            client: format!("{namespace}/client"),
            url: format!("http://{server}:{WEB}/"),
            iperf: (server, BULK),
            proxies,
        })
    }

    /// Returns the process IDs of the node proxies of client and server.
    fn proxies(&self, first_node: u8, placement: Placement) -> Result<Vec<u32>> {
        let mut pids = self.rig.pids_on("proxy", &format!("node-{first_node}"))?;
        if placement == Placement::TwoNodes {
            pids.extend(
                self.rig
                    .pids_on("proxy", &format!("node-{}", first_node + 1))?,
            );
        }
        Ok(pids)
    }
}

fn server_name(placement: Placement) -> &'static str {
    match placement {
        Placement::OneNode => "near-server",
        Placement::TwoNodes => "far-server",
    }
}

/// Returns the manifests of a namespace: a client on the first node, a server there, and one on the next node. Servers
/// behind relays have a relay, and no client.
fn namespace_of(directory: &Path, namespace: &str, mode: &str, first_node: u8) -> Result<String> {
    let mut manifests = format!(
        "apiVersion: v1
kind: Namespace
metadata: {{name: {namespace}, labels: {{istio.io/dataplane-mode: {mode}}}}}
---
"
    );
    if namespace != "relay" {
        let sleep = container("main", &["sleep", "infinity"]);
        manifests += &pod(namespace, "client", first_node, &[sleep]);
    }
    for (placement, node) in [
        (Placement::OneNode, first_node),
        (Placement::TwoNodes, first_node + 1),
    ] {
        let name = server_name(placement);
        let nginx = nginx_configuration(directory, &format!("{namespace}-{name}"))?;
        let mut containers = vec![
            format!(
                "{}, readinessProbe: {{tcpSocket: {{port: {WEB}}}}}",
                container("web", &["nginx", "-c", &nginx])
            ),
            container("iperf", &["iperf3", "-s", "-p", &BULK.to_string()]),
        ];
        if namespace == "relay" {
            let relays = [
                (RELAYED_WEB.to_string(), format!("127.0.0.1:{WEB}")),
                (RELAYED_BULK.to_string(), format!("127.0.0.1:{BULK}")),
            ];
            let relay = relay_configuration(directory, name, &relays)?;
            containers.push(container("relay", &["nginx", "-c", &relay]));
        }
        manifests += &pod(namespace, name, node, &containers);
    }
    Ok(manifests)
}

/// Returns the fields of a container, without the braces around them.
fn container(name: &str, command: &[&str]) -> String {
    format!(
        "name: {name}, image: none, command: [{}]",
        command.join(", ")
    )
}

fn pod(namespace: &str, name: &str, node: u8, containers: &[String]) -> String {
    let containers: String = containers
        .iter()
        .map(|fields| format!("  - {{{fields}}}\n"))
        .collect();
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  nodeName: node-{node}
  serviceAccountName: {name}
  containers:
{containers}---
"
    )
}

/// Writes the configuration of an nginx that relays TCP connections, from a port or address to an address each, and
/// returns its path.
fn relay_configuration(
    directory: &Path,
    name: &str,
    relays: &[(String, String)],
) -> Result<String> {
    let path = directory.join(format!("relay-{name}.conf"));
    let servers: String = relays
        .iter()
        .map(|(from, to)| {
            format!("  server {{ listen {from} backlog=4096; proxy_buffer_size 64k; proxy_pass {to}; }}\n")
        })
        .collect();
    let text = format!(
        "load_module /usr/lib/nginx/modules/ngx_stream_module.so;
worker_processes 1; daemon off; error_log /dev/null; pid {}/relay-{name}.pid;
events {{ worker_connections 16384; }}
stream {{\n{servers}}}\n",
        directory.display()
    );
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path.display().to_string())
}
