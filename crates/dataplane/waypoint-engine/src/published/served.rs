//! Store of the services that the waypoint serves, with their route tables.

use std::{collections::HashMap, sync::Arc};

use ambit_l7::{
    route::{RouteTable, applies_to_port},
    stream::StreamTable,
};
use ambit_model::{
    ArcStr, HttpBackend, HttpFilter, HttpRoute, NamespacedHostname, PodGrant, StreamRoute,
    WaypointService,
};
use ambit_route::WorkloadRef;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::record_store::{RecordStore, RemovedRecord, to_json};

/// Key of a route table: port, and client namespace with consumer routes; `None` for all other clients.
type TableKey = (u16, Option<ArcStr>);

/// Service that the waypoint serves, with its routes.
#[derive(Debug)]
pub struct ServedService {
    /// Name of the service.
    pub name: NamespacedHostname,
    /// Whether the service is a wildcard whose hosts the waypoint resolves by DNS, as each request names them.
    pub resolves_hosts: bool,
    /// ReferenceGrants of other namespaces by which the service's attachments also apply to requests to the pods there.
    pod_grants: Vec<PodGrant>,
    routes: Vec<HttpRoute>,
    /// Compiled route tables, by port and client namespace.
    route_tables: Mutex<HashMap<TableKey, Arc<RouteTable>>>,
    tls_routes: Vec<StreamRoute>,
    tcp_routes: Vec<StreamRoute>,
    stream_tables: Mutex<HashMap<TableKey, Arc<StreamTable>>>,
}

impl ServedService {
    pub(super) fn new(service: WaypointService) -> Self {
        Self {
            name: service.service,
            resolves_hosts: service.resolves_hosts,
            pod_grants: service.grantors,
            routes: service.routes,
            route_tables: Mutex::default(),
            tls_routes: service.tls_routes,
            tcp_routes: service.tcp_routes,
            stream_tables: Mutex::default(),
        }
    }

    /// Whether the service's attachments apply to requests to one of its endpoint pods: a pod of the service's
    /// namespace, or of a namespace whose ReferenceGrant permits that.
    pub(crate) fn applies_to_pod(&self, pod: &WorkloadRef) -> bool {
        let is_granted = |grant: &PodGrant| {
            let is_pod = grant.pod.is_empty() || grant.pod.as_str() == pod.name();
            grant.namespace == *pod.namespace() && is_pod
        };
        self.name.namespace == *pod.namespace() || self.pod_grants.iter().any(is_granted)
    }

    /// Returns the published HTTP routes.
    pub(crate) fn http_routes(&self) -> &[HttpRoute] {
        &self.routes
    }

    /// Returns the published TLS routes, which match the SNI.
    pub(crate) fn tls_routes(&self) -> &[StreamRoute] {
        &self.tls_routes
    }

    /// Returns the published TCP routes.
    pub(crate) fn tcp_routes(&self) -> &[StreamRoute] {
        &self.tcp_routes
    }

    /// Returns the HTTP route table of a port for clients of this namespace: the namespace's consumer routes if it has
    /// any, else the producer routes.
    pub fn routes(&self, port: u16, client: Option<&str>) -> Arc<RouteTable> {
        let is_own = |route: &&HttpRoute| {
            client.is_some() && route.clients.as_deref() == client && applies_to_port(route, port)
        };
        let own = self.routes.iter().find(is_own);
        let clients = own.and_then(|route| route.clients.clone());
        let mut tables = self.route_tables.lock();
        let table = tables.entry((port, clients.clone()));
        table
            .or_insert_with(|| Arc::new(RouteTable::new(&self.routes, port, clients.as_deref())))
            .clone()
    }

    /// Returns the TCP or TLS routes of a port for clients of this namespace; `None` if there are none.
    pub fn stream_routes(&self, port: u16, client: Option<&str>) -> Arc<StreamTable> {
        let mut routes = self.tls_routes.iter().chain(&self.tcp_routes);
        // All clients without consumer routes share one table.
        let own = routes.find(|route| client.is_some() && route.clients.as_deref() == client);
        let client = own.and_then(|route| route.clients.clone());
        let mut tables = self.stream_tables.lock();
        let table = tables.entry((port, client.clone()));
        table
            .or_insert_with(|| {
                let (tls, tcp) = (&self.tls_routes, &self.tcp_routes);
                Arc::new(StreamTable::new(tls, tcp, port, client.as_deref()))
            })
            .clone()
    }

    /// Iterates over the services that routes name as backends or mirrors.
    pub(super) fn backends(&self) -> impl Iterator<Item = &NamespacedHostname> {
        let rules = || self.routes.iter().flat_map(|route| &route.rules);
        let backends = || rules().flat_map(|rule| &rule.backends);
        let filters = rules().flat_map(|rule| &rule.filters);
        let filters = filters.chain(backends().flat_map(|backend| &backend.filters));
        let mirrors = filters.filter_map(|filter| match filter {
            HttpFilter::Mirror(mirror) => Some(&mirror.service),
            _ => None,
        });
        let of_requests =
            backends().filter_map(|backend: &HttpBackend| backend.service.as_ref().ok());
        let routes = self.tls_routes.iter().chain(&self.tcp_routes);
        let backends = routes.flat_map(|route| &route.backends);
        let of_connections = backends.filter_map(|backend| backend.service.as_ref().ok());
        of_requests.chain(mirrors).chain(of_connections)
    }
}

/// Store of the services that the waypoint serves, by name.
#[derive(Debug, Default)]
pub(super) struct Services {
    by_name: HashMap<NamespacedHostname, Arc<ServedService>>,
    /// Service of each published record, by xDS resource name.
    names: HashMap<ArcStr, NamespacedHostname>,
}

impl Services {
    pub(super) fn get(&self, name: &NamespacedHostname) -> Option<&Arc<ServedService>> {
        self.by_name.get(name)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Arc<ServedService>> {
        self.by_name.values()
    }
}

impl RecordStore for Services {
    type Record = WaypointService;

    const BLOCKS_READINESS: bool = true;

    fn put(&mut self, resource: ArcStr, record: WaypointService) {
        let served = ServedService::new(record);
        self.names.insert(resource, served.name.clone());
        self.by_name.insert(served.name.clone(), Arc::new(served));
    }

    fn remove(&mut self, resource: &ArcStr) -> Option<RemovedRecord> {
        let name = self.names.remove(resource)?;
        self.by_name.remove(&name);
        None
    }

    fn dump(&self) -> Value {
        let mut all: Vec<_> = self.by_name.values().collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        let one = |served: &Arc<ServedService>| {
            json!({
                "service": to_json(&served.name),
                "resolvesHosts": served.resolves_hosts,
                "grantors": to_json(&served.pod_grants),
                "routes": to_json(&served.routes),
                "tlsRoutes": to_json(&served.tls_routes),
                "tcpRoutes": to_json(&served.tcp_routes),
            })
        };
        all.into_iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consumer_routes_replace_producer_routes_on_their_ports() {
        let route = |name: &str, clients: Option<&str>, ports: &[u16]| HttpRoute {
            name: ambit_model::RouteName {
                name: name.into(),
                ..Default::default()
            },
            ports: ports.to_vec(),
            clients: clients.map(ArcStr::from),
            rules: vec![ambit_model::HttpRouteRule::default()],
            ..HttpRoute::default()
        };
        let served = ServedService::new(WaypointService {
            service: NamespacedHostname::new("ns", "a"),
            routes: vec![route("all", None, &[]), route("own", Some("bank"), &[80])],
            ..WaypointService::default()
        });
        let of = |port, client| {
            let headers = http::HeaderMap::new();
            let table = served.routes(port, client);
            let request = ambit_l7::route::RouteRequest {
                method: "GET",
                path: "/",
                query: None,
                host: "",
                headers: &headers,
            };
            match table.select_rule(&request) {
                ambit_l7::route::RouteDecision::Rule(rule, _) => rule.route.name.to_string(),
                other => format!("{other:?}"),
            }
        };
        assert_eq!(of(80, Some("bank")), "own");
        assert_eq!(of(81, Some("bank")), "all");
        assert_eq!(of(80, Some("shop")), "all");
        assert_eq!(of(80, None), "all");
    }
}
