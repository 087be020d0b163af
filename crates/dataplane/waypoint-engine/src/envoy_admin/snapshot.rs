//! Snapshot of a waypoint's configuration for one dump: ports of served services, and clusters, which are the
//! destinations of these ports and the other backends of their routes. Records are shared with the waypoint, not
//! copied; the endpoints of one cluster are read at a time.

use std::{
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use ambit_model::{
    DestinationPolicy, HttpBackend, HttpFilter, HttpMirror, HttpRoute, NamespacedHostname, Service,
    Workload,
};

use super::names::{ClusterKey, ClusterNames, ProxyKind};
use crate::{
    attachments::Attachments,
    destination::DestinationRuleState,
    published::ServedService,
    server::TunnelProtocol,
    target::{Target, UNKNOWN_ADDRESS},
    waypoint::Waypoint,
};

/// Ports and clusters of a waypoint at the time of a dump.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) names: ClusterNames,
    /// Ports sorted by service and port.
    pub(super) ports: Vec<ServedPort>,
    /// Clusters sorted by service, port and subset.
    pub(super) clusters: Vec<Cluster>,
}

/// Port of a service that the waypoint serves.
#[derive(Clone, Debug)]
pub(super) struct ServedPort {
    pub(super) served: Arc<ServedService>,
    pub(super) service: Arc<Service>,
    pub(super) port: u16,
    /// Envoy filters that proxy connections of clients without consumer routes: HTTP, TCP, or both if the protocol is
    /// detected from the first bytes.
    pub(super) proxy_kinds: &'static [ProxyKind],
}

/// Envoy cluster to which requests or connections are forwarded: a service port, or a subset at that port.
#[derive(Clone, Debug)]
pub(super) struct Cluster {
    pub(super) key: ClusterKey,
    pub(super) service: Arc<Service>,
    pub(super) rule: Option<Arc<DestinationRuleState>>,
    /// Whether the service is a wildcard whose hosts the waypoint resolves by DNS, as each request names them.
    pub(super) resolves_hosts: bool,
}

/// Endpoint of a cluster, with its load and ejection.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    pub(super) workload: Workload,
    pub(super) port: u16,
    /// Remaining time of the ejection; `None` if the endpoint is not ejected.
    pub(super) ejected_for: Option<Duration>,
    /// Number of active requests, if the load-balancing policy counts them.
    pub(super) active_requests: Option<u32>,
}

impl Snapshot {
    /// Captures the ports and clusters of a waypoint.
    pub(super) fn capture(waypoint: &Waypoint) -> Self {
        let all = waypoint.published.services();
        let names = ClusterNames::new(all.iter().map(|served| served.name.clone()));
        let ports: Vec<_> = all
            .into_iter()
            .flat_map(|served| served_ports(waypoint, &served))
            .collect();
        let keys = cluster_keys(waypoint, &ports);
        let clusters = keys.into_iter().filter_map(|key| cluster(waypoint, key));
        Self {
            clusters: clusters.collect(),
            names,
            ports,
        }
    }
}

impl ServedPort {
    /// Whether the HTTP connection manager serves the port.
    pub(super) fn is_http(&self) -> bool {
        self.proxy_kinds.contains(&ProxyKind::Http)
    }

    /// Returns the key of the cluster for the port's own service. The cluster receives the traffic that no route
    /// forwards elsewhere.
    pub(super) fn own_cluster(&self, kind: ProxyKind) -> ClusterKey {
        ClusterKey {
            service: self.served.name.clone(),
            port: self.port,
            subset: None,
            kind,
        }
    }

    /// Returns the client namespaces that have consumer routes for the port.
    pub(super) fn client_namespaces(&self) -> BTreeSet<&str> {
        let routes = self.served.http_routes().iter();
        let routes = routes.filter(|route| ambit_l7::route::applies_to_port(route, self.port));
        routes
            .filter_map(|route| route.clients.as_deref())
            .collect()
    }
}

impl Cluster {
    /// Returns the traffic policy that the destination rule sets for the cluster, if any.
    pub(super) fn policy(&self) -> Option<&DestinationPolicy> {
        let record = self.rule.as_ref()?.record();
        Some(match &self.key.subset {
            None => record.policy(self.key.port),
            Some(subset) => record.subsets.get(subset)?.policy(self.key.port),
        })
    }

    /// Reads the endpoints of the cluster, including unready ones.
    pub(super) fn endpoints(&self, waypoint: &Waypoint, now: Instant) -> Vec<Endpoint> {
        let ClusterKey { port, subset, .. } = &self.key;
        let states = self.rule.as_ref();
        let states = states.map(|rule| rule.endpoint_states(subset.as_ref(), *port, now));
        let states: HashMap<_, _> = states
            .into_iter()
            .flatten()
            .map(|state| (state.uid.clone(), state))
            .collect();
        let record = self.rule.as_ref().map(|rule| rule.record());
        let members = record.zip(subset.as_ref());
        let members = members.and_then(|(record, subset)| record.subsets.get(subset));
        let mut all = waypoint.state.table().port_endpoints(&self.service, *port);
        all.retain(|endpoint| {
            members.is_none_or(|members| members.workloads.contains(endpoint.workload.uid()))
        });
        all.sort_by(|a, b| a.workload.uid().cmp(b.workload.uid()));
        let view = |endpoint: ambit_route::PortEndpoint| {
            let state = states.get(endpoint.workload.uid());
            Endpoint {
                workload: endpoint.workload.to_model(),
                port: endpoint.port,
                ejected_for: state.and_then(|state| state.ejected_for),
                active_requests: state.map(|state| state.active_requests),
            }
        };
        all.into_iter().map(view).collect()
    }
}

fn served_ports(waypoint: &Waypoint, served: &Arc<ServedService>) -> Vec<ServedPort> {
    let service = waypoint.state.table().service(&served.name).cloned();
    let Some(service) = service else {
        return Vec::new();
    };
    let ports = service.ports.sorted();
    let of_port = |port: u16| ServedPort {
        served: served.clone(),
        service: service.clone(),
        port,
        proxy_kinds: proxy_kinds(waypoint, served, &service, port),
    };
    ports.into_keys().map(of_port).collect()
}

fn proxy_kinds(
    waypoint: &Waypoint,
    served: &Arc<ServedService>,
    service: &Arc<Service>,
    port: u16,
) -> &'static [ProxyKind] {
    let target = Target::Service {
        service: service.clone(),
        served: served.clone(),
        address: SocketAddr::new(UNKNOWN_ADDRESS, port),
    };
    let attachments = Attachments::Service {
        service: served.name.clone(),
        port,
    };
    match TunnelProtocol::for_client(waypoint, &target, &attachments, None) {
        TunnelProtocol::Http | TunnelProtocol::HttpRequired => &[ProxyKind::Http],
        TunnelProtocol::Tcp | TunnelProtocol::Tls => &[ProxyKind::Tcp],
        TunnelProtocol::Unknown => &[ProxyKind::Http, ProxyKind::Tcp],
    }
}

/// Returns the keys of all clusters: those of served ports, their subsets, and the backends of their routes.
fn cluster_keys(waypoint: &Waypoint, ports: &[ServedPort]) -> BTreeSet<ClusterKey> {
    let mut keys = BTreeSet::new();
    for port in ports {
        for kind in port.proxy_kinds {
            keys.insert(port.own_cluster(*kind));
            let rule = waypoint.published.destination(&port.served.name);
            let subsets = rule.iter().flat_map(|rule| rule.record().subsets.keys());
            let subsets = subsets.filter(|_| *kind == ProxyKind::Http);
            keys.extend(subsets.map(|subset| ClusterKey {
                subset: Some(subset.clone()),
                ..port.own_cluster(*kind)
            }));
        }
        let of_requests = port
            .served
            .http_routes()
            .iter()
            .flat_map(backend_and_mirror_keys);
        let routes = port.served.tls_routes().iter();
        let routes = routes.chain(port.served.tcp_routes());
        let of_connections = routes.flat_map(|route| {
            let backends = route.backends.iter();
            backends.filter_map(|backend| {
                Some(ClusterKey {
                    service: backend.service.as_ref().ok()?.clone(),
                    port: backend.port,
                    subset: None,
                    kind: ProxyKind::Tcp,
                })
            })
        });
        keys.extend(of_requests.chain(of_connections));
    }
    keys
}

fn backend_and_mirror_keys(route: &HttpRoute) -> impl Iterator<Item = ClusterKey> {
    let rules = || route.rules.iter();
    let backends = || rules().flat_map(|rule| &rule.backends);
    let filters = rules().flat_map(|rule| &rule.filters);
    let filters = filters.chain(backends().flat_map(|backend| &backend.filters));
    let mirrors = filters.filter_map(|filter| match filter {
        HttpFilter::Mirror(mirror) => Some(mirror_key(mirror)),
        _ => None,
    });
    backends().filter_map(backend_key).chain(mirrors)
}

/// Returns the cluster key of a route's backend; `None` if the backend is invalid.
pub(super) fn backend_key(backend: &HttpBackend) -> Option<ClusterKey> {
    let service: &NamespacedHostname = backend.service.as_ref().ok()?;
    Some(ClusterKey {
        service: service.clone(),
        port: backend.port,
        subset: backend.subset.clone(),
        kind: ProxyKind::Http,
    })
}

/// Returns the cluster key of a mirror's service and port.
pub(super) fn mirror_key(mirror: &HttpMirror) -> ClusterKey {
    ClusterKey {
        service: mirror.service.clone(),
        port: mirror.port,
        subset: None,
        kind: ProxyKind::Http,
    }
}

fn cluster(waypoint: &Waypoint, key: ClusterKey) -> Option<Cluster> {
    let service = waypoint.state.table().service(&key.service).cloned()?;
    let served = waypoint.published.service(&key.service);
    Some(Cluster {
        rule: waypoint.published.destination(&key.service),
        resolves_hosts: served.is_some_and(|served| served.resolves_hosts),
        service,
        key,
    })
}
