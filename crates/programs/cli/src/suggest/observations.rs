//! Observed traffic by target and caller, collected from flow events. Refused calls are only counted.

use std::collections::{BTreeMap, BTreeSet};

use ambit_flow::{Flow, FlowEventKind, Peer, ReporterKind, StreamItem};
use serde_json::Value;

use crate::dump::{Connection, PodEntry};

/// Maximum number of callers of one target; for a target with more, no policy is suggested.
const MAX_CALLERS: usize = 1_000;
/// Maximum number of paths that a policy lists for one caller and method; with more, it does not restrict paths.
pub(super) const MAX_PATHS: usize = 20;

/// Port at the end of an address that is a waypoint's HBONE tunnel.
const TUNNEL_PORT: &str = ":15008";

/// Client of observed traffic, in a form that an AuthorizationPolicy can match.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ClientMatcher {
    /// SPIFFE identity of the client without `spiffe://`, as policies name it.
    Principal(String),
    /// IP address of a client without an identity.
    Address(String),
}

/// Workload or service for which a policy can be suggested.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PolicyTarget {
    /// Pods of one owner: namespace, and the name of the owner, or of a pod without one.
    Pods(String, String),
    /// Service behind a waypoint: namespace, name.
    Service(String, String),
}

/// Ports, methods and paths that one client uses on one target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// Ports of the pods to which the client connected.
    pub(super) ports: BTreeSet<u16>,
    /// Paths of HTTP requests through the waypoint, by method.
    pub(super) requests: BTreeMap<String, BTreeSet<String>>,
    /// Whether connections other than HTTP went through the waypoint.
    pub(super) connections: bool,
}

/// Traffic observed in the period, by target and client.
#[derive(Debug, Default)]
pub(super) struct Observations {
    /// Names of the observed pods of each target.
    pods: BTreeMap<PolicyTarget, BTreeSet<String>>,
    pub(super) usage: BTreeMap<PolicyTarget, BTreeMap<ClientMatcher, Usage>>,
    /// Targets with more callers than [`MAX_CALLERS`].
    pub(super) targets_over_limit: BTreeSet<PolicyTarget>,
    /// Number of refused calls by client and target, as text.
    pub(super) refused: BTreeMap<(String, String), u64>,
    /// Pods that were called by their own address through a waypoint.
    pub(super) directly_called_pods: BTreeSet<String>,
    /// Numbers of ordinary flow events, and of refusals, that proxies did not send.
    pub(super) lost: (u64, u64),
    /// Proxies whose stream of flow events was interrupted.
    pub(super) interrupted: BTreeSet<String>,
}

impl Observations {
    /// Whether no allowed traffic was observed.
    pub(super) fn is_empty(&self) -> bool {
        self.usage.is_empty()
    }

    /// Returns the names of the observed pods of a target.
    pub(super) fn pods_of(&self, target: &PolicyTarget) -> Option<&BTreeSet<String>> {
        self.pods.get(target)
    }

    /// Records that a proxy's stream of flow events was interrupted.
    pub(super) fn add_interruption(&mut self, proxy: &str) {
        self.interrupted.insert(proxy.to_owned());
    }

    /// Adds a flow event, or the number of events that a proxy did not send.
    pub(super) fn add(&mut self, item: &StreamItem) {
        match item {
            StreamItem::Lost { sampled, refusals } => {
                self.lost.0 += sampled;
                self.lost.1 += refusals;
            }
            StreamItem::Flow(flow) => match (flow.event, flow.reporter.kind) {
                (FlowEventKind::Refused, _) => self.add_refusal(flow),
                (FlowEventKind::Failed, _) | (_, ReporterKind::Source) => {}
                // The waypoint decides what a pod's proxy passes on to it.
                (_, ReporterKind::Destination) if flow.waypoint.is_some() => {}
                (_, ReporterKind::Destination) => {
                    self.add_pod_usage(&flow.source, &flow.destination)
                }
                (_, ReporterKind::Waypoint) => self.add_waypoint_flow(flow),
            },
        }
    }

    /// Adds a pod's open inbound connections, from its node proxy's dump.
    pub(super) fn add_open(&mut self, pod: &PodEntry) {
        let info = &pod.info;
        let inbound = pod.connections.get("inbound");
        // The waypoint decides what goes on to it.
        let to_waypoint = |connection: &&Connection| connection.actual_dst.ends_with(TUNNEL_PORT);
        for connection in inbound
            .into_iter()
            .flatten()
            .filter(|one| !to_waypoint(one))
        {
            let identity = connection.src_identity().and_then(Value::as_str);
            let source = Peer {
                identity: identity.map(ToOwned::to_owned),
                address: Some(connection.src.clone()),
                ..Peer::default()
            };
            let server = Peer {
                workload: Some(info.name.clone()),
                namespace: Some(info.namespace.clone()),
                address: Some(connection.original_dst.clone()),
                ..Peer::default()
            };
            self.add_pod_usage(&source, &server);
        }
    }

    fn add_refusal(&mut self, flow: &Flow) {
        let target = match &flow.service {
            Some(service) => format!("{}/{}", service.namespace, service.name),
            None => name(&flow.destination),
        };
        *self
            .refused
            .entry((name(&flow.source), target))
            .or_default() += flow.count;
    }

    /// Records that the client `source` connected to the pod `server`.
    fn add_pod_usage(&mut self, source: &Peer, server: &Peer) {
        let (Some(namespace), Some(workload)) = (&server.namespace, &server.workload) else {
            return;
        };
        let known = self.pods.iter().find(|(target, pods)| {
            matches!(target, PolicyTarget::Pods(of, _) if of == namespace)
                && pods.contains(workload)
        });
        let target = match (&server.owner, known) {
            (None, Some((target, _))) => target.clone(),
            (owner, _) => {
                let owner = owner.as_ref().unwrap_or(workload);
                PolicyTarget::Pods(namespace.clone(), owner.clone())
            }
        };
        let pods = self.pods.entry(target.clone()).or_default();
        pods.insert(workload.clone());
        if let (Some(usage), Some(port)) = (self.usage_entry(target, source), port(server)) {
            usage.ports.insert(port);
        }
    }

    fn add_waypoint_flow(&mut self, flow: &Flow) {
        let Some(service) = &flow.service else {
            self.directly_called_pods.insert(name(&flow.destination));
            return;
        };
        let target = PolicyTarget::Service(service.namespace.clone(), service.name.clone());
        let Some(usage) = self.usage_entry(target, &flow.source) else {
            return;
        };
        match &flow.request {
            None => usage.connections = true,
            Some(request) => {
                let paths = usage.requests.entry(request.method.clone()).or_default();
                if paths.len() <= MAX_PATHS {
                    paths.insert(request.path.clone());
                }
            }
        }
    }

    /// Returns the recorded usage of a target by a client; `None` if no policy can match the client, or if the target
    /// has too many clients.
    fn usage_entry(&mut self, target: PolicyTarget, source: &Peer) -> Option<&mut Usage> {
        let client = match &source.identity {
            Some(identity) => {
                let principal = identity.strip_prefix("spiffe://").unwrap_or(identity);
                ClientMatcher::Principal(principal.to_owned())
            }
            None => {
                let address: std::net::SocketAddr = source.address.as_ref()?.parse().ok()?;
                ClientMatcher::Address(address.ip().to_string())
            }
        };
        let clients = self.usage.entry(target.clone()).or_default();
        if clients.len() >= MAX_CALLERS && !clients.contains_key(&client) {
            self.targets_over_limit.insert(target);
            return None;
        }
        Some(clients.entry(client).or_default())
    }
}

fn name(peer: &Peer) -> String {
    match (&peer.namespace, peer.name()) {
        (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
        _ => {
            let known = peer.identity.as_ref().or(peer.address.as_ref());
            known.cloned().unwrap_or_default()
        }
    }
}

fn port(peer: &Peer) -> Option<u16> {
    let address = peer.address.as_deref()?;
    address.rsplit_once(':')?.1.parse().ok()
}
