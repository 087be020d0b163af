//! Observed callers of each target, from flow events. Refused calls are only counted.

use std::collections::{BTreeMap, BTreeSet};

use ambit_flow::{Event, Flow, Peer, ReporterKind, StreamItem};
use serde_json::Value;

use crate::dump::{Connection, PodEntry};

/// Maximum number of callers of one target; a target with more gets no policy.
const MAX_CALLERS: usize = 1_000;
/// Number of paths of a caller from which on a policy does not restrict paths.
pub(super) const MAX_PATHS: usize = 20;

/// Suffix of the address of a tunnel.
const TUNNEL_PORT: &str = ":15008";

/// Client in a form that a policy can match.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Client {
    /// Identity without `spiffe://`.
    Principal(String),
    /// Address of a client without an identity.
    Address(String),
}

/// Server that a policy can be for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    /// Pods: namespace, and the name of their owner, or of the pod.
    Pods(String, String),
    /// A service behind a waypoint: namespace, name.
    Service(String, String),
}

/// Operations of one client on one target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// Ports of pods.
    pub(super) ports: BTreeSet<u16>,
    /// Methods of requests, with the paths.
    pub(super) requests: BTreeMap<String, BTreeSet<String>>,
    /// Whether non-HTTP connections were observed.
    pub(super) connections: bool,
}

/// Collected traffic observations.
#[derive(Debug, Default)]
pub(super) struct Observations {
    /// Pods of each group, by name.
    pods: BTreeMap<Target, BTreeSet<String>>,
    pub(super) usage: BTreeMap<Target, BTreeMap<Client, Usage>>,
    /// Targets with more callers than the limit.
    pub(super) crowded: BTreeSet<Target>,
    /// Refused calls, with their number: client, target.
    pub(super) refused: BTreeMap<(String, String), u64>,
    /// Pods that were called by their own address through a waypoint.
    pub(super) to_pods: BTreeSet<String>,
    /// Numbers of events and of refusals that were left out.
    pub(super) lost: (u64, u64),
    /// Proxies whose events were missing for a while.
    pub(super) interrupted: BTreeSet<String>,
}

impl Observations {
    /// Whether no allowed traffic was observed.
    pub(super) fn is_empty(&self) -> bool {
        self.usage.is_empty()
    }

    /// Names of the pods of a target.
    pub(super) fn pods_of(&self, target: &Target) -> Option<&BTreeSet<String>> {
        self.pods.get(target)
    }

    /// Notes that a proxy's events were missing for a while.
    pub(super) fn interrupted(&mut self, proxy: &str) {
        self.interrupted.insert(proxy.to_owned());
    }

    /// Adds an event.
    pub(super) fn add(&mut self, item: &StreamItem) {
        match item {
            StreamItem::Lost { sampled, refusals } => {
                self.lost.0 += sampled;
                self.lost.1 += refusals;
            }
            StreamItem::Flow(flow) => match (flow.event, flow.reporter.kind) {
                (Event::Refused, _) => self.refuse(flow),
                (Event::Failed, _) | (_, ReporterKind::Source) => {}
                // The waypoint decides what a pod's proxy passes on to it.
                (_, ReporterKind::Destination) if flow.waypoint.is_some() => {}
                (_, ReporterKind::Destination) => self.use_pod(&flow.source, &flow.destination),
                (_, ReporterKind::Waypoint) => self.at_waypoint(flow),
            },
        }
    }

    /// Adds the open connections to a pod that its node proxy lists.
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
            self.use_pod(&source, &server);
        }
    }

    fn refuse(&mut self, flow: &Flow) {
        let target = match &flow.service {
            Some(service) => format!("{}/{}", service.namespace, service.name),
            None => name(&flow.destination),
        };
        *self
            .refused
            .entry((name(&flow.source), target))
            .or_default() += flow.count;
    }

    /// Records that a client uses a pod.
    fn use_pod(&mut self, source: &Peer, server: &Peer) {
        let (Some(namespace), Some(workload)) = (&server.namespace, &server.workload) else {
            return;
        };
        let known = self.pods.iter().find(|(target, pods)| {
            matches!(target, Target::Pods(of, _) if of == namespace) && pods.contains(workload)
        });
        let target = match (&server.owner, known) {
            (None, Some((target, _))) => target.clone(),
            (owner, _) => {
                let owner = owner.as_ref().unwrap_or(workload);
                Target::Pods(namespace.clone(), owner.clone())
            }
        };
        let pods = self.pods.entry(target.clone()).or_default();
        pods.insert(workload.clone());
        if let (Some(usage), Some(port)) = (self.usage_of(target, source), port(server)) {
            usage.ports.insert(port);
        }
    }

    fn at_waypoint(&mut self, flow: &Flow) {
        let Some(service) = &flow.service else {
            self.to_pods.insert(name(&flow.destination));
            return;
        };
        let target = Target::Service(service.namespace.clone(), service.name.clone());
        let Some(usage) = self.usage_of(target, &flow.source) else {
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

    /// Returns the usage of a target by a client; `None` if no policy can match the client, or the target has too many
    /// clients.
    fn usage_of(&mut self, target: Target, source: &Peer) -> Option<&mut Usage> {
        let client = match &source.identity {
            Some(identity) => {
                let principal = identity.strip_prefix("spiffe://").unwrap_or(identity);
                Client::Principal(principal.to_owned())
            }
            None => {
                let address: std::net::SocketAddr = source.address.as_ref()?.parse().ok()?;
                Client::Address(address.ip().to_string())
            }
        };
        let clients = self.usage.entry(target.clone()).or_default();
        if clients.len() >= MAX_CALLERS && !clients.contains_key(&client) {
            self.crowded.insert(target);
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
