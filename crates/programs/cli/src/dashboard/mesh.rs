//! State of the mesh for the page, from the node proxies' dumps: workloads, services, policies, certificates and nodes.
//! It is read repeatedly while a page polls.

use std::collections::{BTreeMap, BTreeSet};

use ambit_rt::spawn_blocking;
use futures_util::{StreamExt as _, stream};
use hyper::Method;
use serde::{Deserialize, Serialize};

use crate::{
    CliError, ErrorKind,
    dump::{
        CertificateEntry, Dump, DumpEntries, PodEntry, PolicyEntry, ServiceEntry, WorkloadEntry,
        non_empty_or,
    },
    source::{CONFIG_DUMP_PATH, Source},
    waypoint::{GatewayObject, WaypointScope},
};

/// Maximum number of node proxies that are queried concurrently.
const MAX_CONCURRENT_QUERIES: usize = 8;
/// Maximum number of workloads in the response; more are only counted.
const MAX_WORKLOADS: usize = 10_000;

/// State of the mesh as the page shows it.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Mesh {
    workloads: Vec<Workload>,
    /// Number of workloads that are not in the response because of [`MAX_WORKLOADS`].
    left_out: usize,
    services: Vec<Service>,
    waypoints: Vec<Waypoint>,
    policies: Vec<Policy>,
    certificates: Vec<Certificate>,
    nodes: Vec<Node>,
    /// Components of the mesh that could not be queried, with the reason.
    troubles: Vec<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Workload {
    name: String,
    namespace: String,
    owner: String,
    node: String,
    identity: String,
    /// `HBONE` if the workload is in the mesh, else `TCP`.
    protocol: String,
    status: String,
    addresses: Vec<String>,
    waypoint: Option<String>,
    policies: Vec<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Service {
    name: String,
    namespace: String,
    hostname: String,
    addresses: Vec<String>,
    ports: Vec<u16>,
    waypoint: Option<String>,
    /// Workloads that are the service's endpoints, `namespace/name`.
    endpoints: Vec<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Waypoint {
    name: String,
    namespace: String,
    programmed: bool,
    /// Whether Ambit's control plane manages the waypoint, so that its records can be requested.
    ours: bool,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Policy {
    name: String,
    namespace: String,
    scope: String,
    action: String,
    rules: usize,
    dry_run: bool,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
struct Certificate {
    identity: String,
    node: String,
    state: String,
    serial: String,
    valid_from: String,
    expires: String,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    name: String,
    /// Reason why the node's proxy does not respond; `None` if it does.
    error: Option<String>,
    /// Number of pods that the node's proxy serves.
    pods: usize,
    connections: usize,
}

/// Part of a node proxy's dump that differs between nodes: its certificates and pods.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeDump {
    certificates: DumpEntries<CertificateEntry>,
    workload_state: BTreeMap<String, PodEntry>,
}

/// Queries all node proxies for the state of the mesh; an error if none responds.
pub(super) async fn gather(source: &Source) -> Result<Mesh, CliError> {
    let sources = run_query(source.clone(), Source::all_node_proxies).await?;
    let mut mesh = Mesh::default();
    let mut rest = sources.into_iter();
    let mut unanswered = CliError::new(ErrorKind::NotFound, "no node proxy runs");
    // Every proxy knows the whole mesh: one is read whole.
    loop {
        let Some(source) = rest.next() else {
            return Err(unanswered);
        };
        let node = source.node.clone().unwrap_or_default();
        match run_query(source, Source::load_dump).await {
            Ok(dump) => {
                mesh.add_dump(&node, dump);
                break;
            }
            Err(error) => {
                mesh.add_node(&node, Err(one_line_error(&error)));
                unanswered = error;
            }
        }
    }
    let asking = |source: Source| async move {
        let node = source.node.clone().unwrap_or_default();
        let own = run_query(source, load_node_dump).await;
        (node, own.map_err(|error| one_line_error(&error)))
    };
    let mut answers = stream::iter(rest)
        .map(asking)
        .buffered(MAX_CONCURRENT_QUERIES);
    while let Some((node, own)) = answers.next().await {
        mesh.add_node(&node, own);
    }
    match run_query(source.clone(), list_waypoints).await {
        Ok(found) => mesh.add_waypoints(found.iter().map(Waypoint::from_gateway).collect()),
        Err(error) => mesh.troubles.push(one_line_error(&error)),
    }
    mesh.certificates.sort();
    Ok(mesh)
}

/// Runs a blocking query of the mesh on a thread for blocking work.
pub(super) async fn run_query<T: Send + 'static>(
    source: Source,
    question: impl FnOnce(&Source) -> Result<T, CliError> + Send + 'static,
) -> Result<T, CliError> {
    let asking = spawn_blocking("ask the mesh", move || question(&source));
    asking.await.unwrap_or_else(|error| {
        Err(CliError::new(ErrorKind::Failed, "a question to the mesh failed").with_source(error))
    })
}

/// Formats an error with its causes and hints on one line.
pub(super) fn one_line_error(error: &CliError) -> String {
    let text = error.message_with_sources();
    text.trim_start_matches("error: ").replace('\n', "; ")
}

fn load_node_dump(source: &Source) -> Result<NodeDump, CliError> {
    let bytes = source.request_ok(Method::GET, CONFIG_DUMP_PATH)?;
    serde_json::from_slice(&bytes).map_err(|error| {
        CliError::new(ErrorKind::Unreachable, "the answer is no config dump").with_source(error)
    })
}

fn list_waypoints(source: &Source) -> Result<Vec<GatewayObject>, CliError> {
    WaypointScope::of(source).list_waypoints(true)
}

impl Mesh {
    fn add_dump(&mut self, node: &str, dump: Dump) {
        self.left_out = dump.workloads.len().saturating_sub(MAX_WORKLOADS);
        let workloads = dump.workloads.parsed().take(MAX_WORKLOADS);
        self.workloads = workloads.map(Workload::from_entry).collect();
        let names: BTreeMap<&str, String> = dump
            .workloads
            .parsed()
            .map(|one| (one.uid.as_str(), format!("{}/{}", one.namespace, one.name)))
            .collect();
        let services = dump.services.parsed().take(MAX_WORKLOADS);
        self.services = services
            .map(|one| Service::from_entry(one, &names))
            .collect();
        self.policies = dump.policies.parsed().map(Policy::from_entry).collect();
        let own = NodeDump {
            certificates: dump.certificates,
            workload_state: dump.workload_state,
        };
        self.add_node(node, Ok(own));
    }

    /// Sets the waypoints, and makes each the owner of its pods: flow events name these by their service account, which
    /// has the Gateway's name.
    fn add_waypoints(&mut self, waypoints: Vec<Waypoint>) {
        let accounts: BTreeSet<_> = waypoints
            .iter()
            .map(|one| format!("/ns/{}/sa/{}", one.namespace, one.name))
            .collect();
        for workload in &mut self.workloads {
            let account = workload.identity.find("/ns/");
            let account = account.and_then(|start| workload.identity.get(start..));
            if account.is_some_and(|account| accounts.contains(account))
                && let Some((_, name)) = workload.identity.rsplit_once('/')
            {
                workload.owner = name.to_owned();
            }
        }
        self.waypoints = waypoints;
    }

    fn add_node(&mut self, node: &str, dump: Result<NodeDump, String>) {
        let mut view = Node {
            name: node.to_owned(),
            error: None,
            pods: 0,
            connections: 0,
        };
        match dump {
            Ok(dump) => {
                view.pods = dump.workload_state.len();
                view.connections = dump
                    .workload_state
                    .values()
                    .map(PodEntry::open_connections)
                    .sum();
                let certificates = dump.certificates.parsed();
                self.certificates
                    .extend(certificates.map(|one| Certificate::from_entry(one, node)));
            }
            Err(error) => view.error = Some(error),
        }
        self.nodes.push(view);
    }
}

impl Workload {
    fn from_entry(entry: &WorkloadEntry) -> Self {
        let domain = non_empty_or(&entry.trust_domain, ambit_model::DEFAULT_TRUST_DOMAIN);
        let account = non_empty_or(&entry.service_account, "default");
        Self {
            name: entry.name.clone(),
            namespace: entry.namespace.clone(),
            owner: non_empty_or(&entry.workload_name, &entry.name).to_owned(),
            node: entry.node.clone(),
            identity: format!("spiffe://{domain}/ns/{}/sa/{account}", entry.namespace),
            protocol: non_empty_or(&entry.protocol, "TCP").to_owned(),
            status: non_empty_or(&entry.status, "Healthy").to_owned(),
            addresses: entry.workload_ips.clone(),
            waypoint: entry
                .waypoint
                .as_ref()
                .map(crate::dump::Waypoint::destination),
            policies: entry.authorization_policies.clone(),
        }
    }
}

impl Service {
    fn from_entry(entry: &ServiceEntry, names: &BTreeMap<&str, String>) -> Self {
        let endpoints = entry.endpoints.iter().flat_map(DumpEntries::parsed);
        let endpoints = endpoints.filter_map(|one| names.get(one.workload_uid.as_str()));
        Self {
            name: entry.name.clone(),
            namespace: entry.namespace.clone(),
            hostname: entry.hostname.clone(),
            addresses: entry.vips.clone(),
            ports: entry.ports.keys().copied().collect(),
            waypoint: entry
                .waypoint
                .as_ref()
                .map(crate::dump::Waypoint::destination),
            endpoints: endpoints.cloned().collect(),
        }
    }
}

impl Waypoint {
    fn from_gateway(gateway: &GatewayObject) -> Self {
        Self {
            name: gateway.name().to_owned(),
            namespace: gateway.namespace().to_owned(),
            programmed: gateway.is_programmed(),
            ours: gateway.is_waypoint(),
        }
    }
}

impl Policy {
    fn from_entry(entry: &PolicyEntry) -> Self {
        Self {
            name: entry.name.clone(),
            namespace: entry.namespace.clone(),
            scope: entry.scope.clone(),
            action: entry.action.clone(),
            rules: entry.rules.len(),
            dry_run: entry.dry_run,
        }
    }
}

impl Certificate {
    fn from_entry(entry: &CertificateEntry, node: &str) -> Self {
        let leaf = entry.cert_chain.first();
        let text = |of: fn(&crate::dump::Certificate) -> &String| leaf.map(of).cloned();
        Self {
            identity: entry.identity.clone(),
            node: node.to_owned(),
            state: entry.state.clone(),
            serial: text(|one| &one.serial_number).unwrap_or_default(),
            valid_from: text(|one| &one.valid_from).unwrap_or_default(),
            expires: text(|one| &one.expiration_time).unwrap_or_default(),
        }
    }
}
