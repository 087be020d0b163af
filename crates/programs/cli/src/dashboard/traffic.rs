//! Traffic of the last half minute, aggregated from flow events: edges of a graph with rates, refusals, latencies and
//! transport, and the latest events. Pure: the caller passes the time. All collections and texts are bounded, whatever
//! proxies send.

mod counters;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use ambit_flow::{Flow, Peer, ReporterKind, Transport};
use serde::{Serialize, Serializer};

use counters::{SlidingWindow, TrafficRates};

/// Maximum number of edges; at the limit a new edge replaces the one that has been idle for the longest time.
const MAX_EDGES: usize = 4096;
/// Maximum number of stored events about refusals and failures.
const MAX_REFUSALS: usize = 500;
const MAX_OTHER_EVENTS: usize = 200;
/// Maximum number of service names, and of route names, that one edge has.
const MAX_NAMES_PER_EDGE: usize = 16;
/// Maximum length of a name from a flow event, in bytes.
const MAX_NAME_BYTES: usize = 256;
/// Maximum length of a path, an error or a reason from a flow event, in bytes.
const MAX_TEXT_BYTES: usize = 1024;
/// Time for which idle edges are shown.
const EDGE_EXPIRY: Duration = Duration::from_secs(600);

/// Node of the traffic graph: one end of an edge.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum TrafficNode {
    /// Workloads of one owner, such as a Deployment: namespace and name.
    Workload(String, String),
    /// Service whose endpoint the event does not name: namespace and name.
    Service(String, String),
    /// All clients and servers that are no workloads of the mesh.
    Outside,
}

/// Edges of the traffic graph, and the latest flow events.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    edges: HashMap<(TrafficNode, TrafficNode), TrafficEdge>,
    refusals: VecDeque<NumberedEvent>,
    other_events: VecDeque<NumberedEvent>,
    /// Number of the latest event.
    latest_number: u64,
    /// Numbers of flow events that proxies did not send.
    lost_events: LostEvents,
    /// Number of edges that were evicted because of [`MAX_EDGES`].
    evicted_edges: u64,
}

#[derive(Debug)]
struct TrafficEdge {
    window: SlidingWindow,
    services: BTreeSet<String>,
    routes: BTreeMap<String, u64>,
    last_seen: Duration,
}

/// Numbers of flow events that proxies did not send to this reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct LostEvents {
    pub(super) sampled: u64,
    pub(super) refusals: u64,
}

/// Flow event with its sequence number.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct NumberedEvent {
    number: u64,
    #[serde(flatten)]
    flow: Flow,
}

/// Traffic at one moment, for the page.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TrafficView {
    latest: u64,
    window_seconds: u64,
    edges: Vec<EdgeView>,
    /// Events with a number above the requested one.
    events: Vec<NumberedEvent>,
    lost: LostEvents,
    forgotten: u64,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct EdgeView {
    from: TrafficNode,
    to: TrafficNode,
    #[serde(flatten)]
    seen: TrafficRates,
    services: BTreeSet<String>,
    /// Number of requests by route since the edge was first seen.
    routes: BTreeMap<String, u64>,
    idle_seconds: u64,
}

impl Serialize for TrafficNode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Workload(namespace, name) => ("workload", namespace, name).serialize(serializer),
            Self::Service(namespace, name) => ("service", namespace, name).serialize(serializer),
            Self::Outside => ("outside", "", "").serialize(serializer),
        }
    }
}

impl Traffic {
    /// Adds a flow event to its edges and to the latest events.
    pub(super) fn add(&mut self, mut flow: Flow, now: Duration) {
        truncate_flow(&mut flow);
        let legs = edges_of_flow(&flow);
        for (number, (from, to)) in legs.into_iter().enumerate() {
            // What a waypoint refused has not come to the server.
            if number > 0 && flow.event.is_refusal() {
                break;
            }
            self.evict_oldest_edge(&from, &to);
            let edge = self.edges.entry((from, to)).or_insert_with(|| TrafficEdge {
                window: SlidingWindow::new(now),
                services: BTreeSet::new(),
                routes: BTreeMap::new(),
                last_seen: now,
            });
            edge.add(&flow, number == 0, now);
        }
        self.latest_number += 1;
        let (events, most) = if flow.event.is_refusal() {
            (&mut self.refusals, MAX_REFUSALS)
        } else {
            (&mut self.other_events, MAX_OTHER_EVENTS)
        };
        if events.len() == most {
            events.pop_front();
        }
        events.push_back(NumberedEvent {
            number: self.latest_number,
            flow,
        });
    }

    /// Counts flow events that a proxy did not send: `sampled` ordinary events, and `refusals`.
    pub(super) fn add_lost(&mut self, sampled: u64, refusals: u64) {
        self.lost_events.sampled = self.lost_events.sampled.saturating_add(sampled);
        self.lost_events.refusals = self.lost_events.refusals.saturating_add(refusals);
    }

    /// Returns the number of the latest event.
    pub(super) fn latest(&self) -> u64 {
        self.latest_number
    }

    /// Whether some edge had traffic within the window, so that its rates still change without new events.
    pub(super) fn is_active(&self, now: Duration) -> bool {
        let mut edges = self.edges.values();
        edges.any(|edge| now.saturating_sub(edge.last_seen) <= counters::WINDOW_LENGTH)
    }

    /// Returns the traffic at `now`, with the events whose number is above `after`.
    pub(super) fn view(&self, now: Duration, after: u64) -> TrafficView {
        let edges = self.edges.iter();
        let mut edges: Vec<_> = edges
            .filter(|(_, edge)| now.saturating_sub(edge.last_seen) < EDGE_EXPIRY)
            .map(|((from, to), edge)| edge.view(from, to, now))
            .collect();
        edges.sort_by(|a, b| (&a.from, &a.to).cmp(&(&b.from, &b.to)));
        let all = self.refusals.iter().chain(&self.other_events);
        let mut events: Vec<_> = all.filter(|one| one.number > after).cloned().collect();
        events.sort_by_key(|one| one.number);
        TrafficView {
            latest: self.latest_number,
            window_seconds: counters::WINDOW_LENGTH.as_secs(),
            edges,
            events,
            lost: self.lost_events,
            forgotten: self.evicted_edges,
        }
    }

    fn evict_oldest_edge(&mut self, from: &TrafficNode, to: &TrafficNode) {
        let key = (from.clone(), to.clone());
        if self.edges.len() < MAX_EDGES || self.edges.contains_key(&key) {
            return;
        }
        let edges = self.edges.iter();
        let idle = edges.min_by_key(|(_, edge)| edge.last_seen);
        if let Some(key) = idle.map(|(key, _)| key.clone()) {
            self.edges.remove(&key);
            self.evicted_edges += 1;
        }
    }
}

impl TrafficEdge {
    /// Adds a flow event to this edge. `has_transport` is whether the event's transport describes this edge.
    fn add(&mut self, flow: &Flow, has_transport: bool, now: Duration) {
        self.window.add(flow, has_transport, now);
        self.last_seen = now;
        if let Some(service) = &flow.service
            && self.services.len() < MAX_NAMES_PER_EDGE
        {
            let name = format!("{}/{}", service.namespace, service.name);
            self.services.insert(name);
        }
        let route = flow.request.as_ref().and_then(|one| one.route.as_ref());
        if let Some(route) = route
            && (self.routes.len() < MAX_NAMES_PER_EDGE || self.routes.contains_key(route))
        {
            let count = self.routes.entry(route.clone()).or_default();
            *count = count.saturating_add(flow.count);
        }
    }

    fn view(&self, from: &TrafficNode, to: &TrafficNode, now: Duration) -> EdgeView {
        EdgeView {
            from: from.clone(),
            to: to.clone(),
            seen: self.window.rates(now),
            services: self.services.clone(),
            routes: self.routes.clone(),
            idle_seconds: now.saturating_sub(self.last_seen).as_secs(),
        }
    }
}

/// Returns the edges (client, server) of a flow event. A waypoint's requests have two: to the waypoint, and from it.
fn edges_of_flow(flow: &Flow) -> Vec<(TrafficNode, TrafficNode)> {
    let source = node_of_peer(&flow.source).unwrap_or(TrafficNode::Outside);
    let destination = node_of_peer(&flow.destination).or_else(|| {
        let service = flow.service.as_ref()?;
        Some(TrafficNode::Service(
            service.namespace.clone(),
            service.name.clone(),
        ))
    });
    let waypoint = flow.waypoint.as_ref().and_then(|name| {
        let (namespace, name) = name.split_once('/')?;
        Some(TrafficNode::Workload(namespace.to_owned(), name.to_owned()))
    });
    match (flow.reporter.kind, waypoint) {
        (ReporterKind::Waypoint, Some(waypoint)) => {
            let mut legs = vec![(source, waypoint.clone())];
            legs.extend(destination.map(|to| (waypoint, to)));
            legs
        }
        (_, Some(waypoint)) if source != waypoint => vec![(source, waypoint)],
        _ => vec![(source, destination.unwrap_or(TrafficNode::Outside))],
    }
}

fn node_of_peer(peer: &Peer) -> Option<TrafficNode> {
    let namespace = peer.namespace.clone().unwrap_or_default();
    Some(TrafficNode::Workload(namespace, peer.name()?.to_owned()))
}

/// Truncates all texts of a flow event, since a proxy of another implementation may have written it.
fn truncate_flow(flow: &mut Flow) {
    let names = [
        &mut flow.time,
        &mut flow.reporter.pod,
        &mut flow.reporter.namespace,
        &mut flow.reporter.node,
    ];
    let peers = [&mut flow.source, &mut flow.destination].into_iter();
    let of_peers = peers.flat_map(|peer| {
        [
            &mut peer.workload,
            &mut peer.owner,
            &mut peer.namespace,
            &mut peer.identity,
            &mut peer.address,
        ]
    });
    let of_peers = of_peers.flatten();
    let of_service = flow.service.iter_mut().flat_map(|service| {
        [
            &mut service.name,
            &mut service.namespace,
            &mut service.hostname,
        ]
    });
    for name in names.into_iter().chain(of_peers).chain(of_service) {
        truncate_text(name, MAX_NAME_BYTES);
    }
    for text in [&mut flow.waypoint, &mut flow.error].into_iter().flatten() {
        truncate_text(text, MAX_TEXT_BYTES);
    }
    if let Some(refusal) = &mut flow.refusal {
        truncate_text(&mut refusal.reason, MAX_TEXT_BYTES);
        if let Some(policy) = &mut refusal.policy {
            truncate_text(policy, MAX_NAME_BYTES * 2);
        }
    }
    if let Some(request) = &mut flow.request {
        truncate_text(&mut request.path, MAX_TEXT_BYTES);
        let of_request = [
            &mut request.method,
            &mut request.authority,
            &mut request.protocol,
            &mut request.flags,
        ];
        let optional = [&mut request.route, &mut request.details];
        for text in of_request.into_iter().chain(optional.into_iter().flatten()) {
            truncate_text(text, MAX_NAME_BYTES);
        }
    }
}

/// Truncates a text to at most this number of bytes, at a character boundary.
fn truncate_text(text: &mut String, max_bytes: usize) {
    text.truncate(text.floor_char_boundary(max_bytes));
}

#[cfg(test)]
mod tests;
