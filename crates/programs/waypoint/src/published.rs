//! What the control plane says of this waypoint: its settings, the services that it serves with their routes, and
//! its policies, and whose tokens it takes.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use ambit_egress::Guard;
use ambit_jwt::Authentications;
use ambit_l7::{
    authz::Policies,
    route::{RouteTable, concerns},
    stream::StreamTable,
};
use ambit_model::{
    ArcStr, HttpBackend, HttpFilter, HttpRoute, NamespacedHostname, PodGrant, PolicyKey,
    StreamRoute, WaypointExtension, WaypointGateway, WaypointService,
};
use ambit_route::WorkloadRef;
use ambit_wasm::Limits;
use ambit_xds::{Resource, WaypointUpdate};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::{
    attachments::Attachments,
    destination::Ruled,
    extensions::{Chain, Extensions, Plugin},
    rate_limits::{Limiters, OfRequests},
    telemetry_config::{Exporters, TelemetryConfig, TelemetryConfigs},
};

/// A port, and the namespace of the clients that a table is for; `None` for everybody.
type TableKey = (u16, Option<ArcStr>);

/// A service that the waypoint serves.
#[derive(Debug)]
pub struct Served {
    /// Name of the service.
    pub name: NamespacedHostname,
    /// Whether each call names the host that is meant.
    pub resolves_hosts: bool,
    /// Pods of other namespaces that what is attached to it is for.
    grantors: Vec<PodGrant>,
    routes: Vec<HttpRoute>,
    /// Of the ports that were asked for, by the namespace of the clients that they are for.
    tables: Mutex<HashMap<TableKey, Arc<RouteTable>>>,
    tls_routes: Vec<StreamRoute>,
    tcp_routes: Vec<StreamRoute>,
    stream_tables: Mutex<HashMap<TableKey, Arc<StreamTable>>>,
}

impl Served {
    fn new(service: WaypointService) -> Self {
        Self {
            name: service.service,
            resolves_hosts: service.resolves_hosts,
            grantors: service.grantors,
            routes: service.routes,
            tables: Mutex::default(),
            tls_routes: service.tls_routes,
            tcp_routes: service.tcp_routes,
            stream_tables: Mutex::default(),
        }
    }

    /// Whether what is attached to it is for requests to a pod that is one of its endpoints: one of its own namespace,
    /// or of one that lets it.
    pub(crate) fn concerns_pod(&self, pod: &WorkloadRef) -> bool {
        let is_granted = |grant: &PodGrant| {
            let is_pod = grant.pod.is_empty() || grant.pod.as_str() == pod.name();
            grant.namespace == *pod.namespace() && is_pod
        };
        self.name.namespace == *pod.namespace() || self.grantors.iter().any(is_granted)
    }

    /// The routes of a port for a client of a namespace: those that the namespace has itself, else those for
    /// everybody.
    pub fn routes(&self, port: u16, client: Option<&str>) -> Arc<RouteTable> {
        let is_own = |route: &&HttpRoute| {
            client.is_some() && route.clients.as_deref() == client && concerns(route, port)
        };
        let own = self.routes.iter().find(is_own);
        let clients = own.and_then(|route| route.clients.clone());
        let mut tables = self.tables.lock();
        let table = tables.entry((port, clients.clone()));
        table
            .or_insert_with(|| Arc::new(RouteTable::new(&self.routes, port, clients.as_deref())))
            .clone()
    }

    /// The routes of connections to a port for a client of a namespace.
    pub fn stream_routes(&self, port: u16, client: Option<&str>) -> Arc<StreamTable> {
        let mut routes = self.tls_routes.iter().chain(&self.tcp_routes);
        // One table does for all clients without routes of their own.
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

    /// The services that its routes lead to, mirrors among them.
    fn backends(&self) -> impl Iterator<Item = &NamespacedHostname> {
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

/// Withdrawn object, which is counted no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gone {
    /// A withdrawn policy.
    Policy(PolicyKey),
    /// A withdrawn destination rule of a service.
    Destination(NamespacedHostname),
}

/// Configuration of this waypoint from the control plane. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Published(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    known: RwLock<Known>,
    /// Whether the control plane says what is told of requests.
    tells: AtomicBool,
    exporters: Exporters,
    /// Which addresses are called.
    guard: Guard,
    /// Number of changes so far.
    changes: watch::Sender<u64>,
    /// Whether there is any plugin: requests without one take no lock for it.
    is_extended: AtomicBool,
    /// Whether there is any rate limit: likewise.
    is_limited: AtomicBool,
}

#[derive(Debug, Default)]
struct Known {
    gateway: Arc<WaypointGateway>,
    services: HashMap<NamespacedHostname, Arc<Served>>,
    policies: Arc<Policies>,
    /// Keys by the names of records.
    service_names: HashMap<ArcStr, NamespacedHostname>,
    policy_names: HashMap<ArcStr, PolicyKey>,
    authentications: Arc<Authentications>,
    authentication_names: HashMap<ArcStr, PolicyKey>,
    /// Services whose endpoints are treated in a way of their own.
    destinations: HashMap<NamespacedHostname, Arc<Ruled>>,
    destination_names: HashMap<ArcStr, NamespacedHostname>,
    /// Telemetry configurations, by target.
    telemetry_configs: TelemetryConfigs,
    extensions: Extensions,
    limits: Limiters,
    /// The types of which all records have been received once.
    complete: Vec<Resource>,
}

/// The types that have to be known before anything is served.
const NEEDED: [Resource; 7] = [
    Resource::WaypointGateway,
    Resource::WaypointService,
    // It may say that endpoints are spoken to in TLS alone.
    Resource::WaypointDestination,
    Resource::WaypointPolicy,
    Resource::WaypointAuthentication,
    // Without it a request would pass by those that are to see it.
    Resource::WaypointExtension,
    // Likewise.
    Resource::WaypointRateLimit,
];

impl Published {
    /// Applies changes; gives what is no more.
    pub fn apply(&self, updates: impl IntoIterator<Item = WaypointUpdate>) -> Vec<Gone> {
        let removed = {
            let mut known = self.0.known.write();
            let exporters = &self.0.exporters;
            let updates = updates.into_iter().inspect(|update| {
                if let WaypointUpdate::Gateway(gateway) = update {
                    let cluster = gateway.cluster_addresses.clone();
                    self.0
                        .guard
                        .update(gateway.allowed_addresses.clone(), cluster);
                }
            });
            let removed = updates.filter_map(|update| known.apply(update, exporters));
            let removed = removed.collect();
            self.0
                .tells
                .store(!known.telemetry_configs.is_empty(), Ordering::Relaxed);
            let is_extended = !known.extensions.chain().0.is_empty();
            self.0.is_extended.store(is_extended, Ordering::Release);
            let is_limited = !known.limits.is_empty();
            self.0.is_limited.store(is_limited, Ordering::Release);
            removed
        };
        self.0.changes.send_modify(|count| *count += 1);
        removed
    }

    /// All records of a type have been received.
    pub fn complete(&self, of: Resource) {
        let mut known = self.0.known.write();
        if !known.complete.contains(&of) {
            known.complete.push(of);
        }
        drop(known);
        self.0.changes.send_modify(|count| *count += 1);
    }

    /// Waits until [`Self::is_known`].
    pub async fn known(&self) {
        let mut changes = self.watch();
        while !self.is_known() {
            // The sender is here.
            let _changed = changes.changed().await;
        }
    }

    /// Whether settings, services and policies have all been received once: before, nothing can be judged.
    pub fn is_known(&self) -> bool {
        let known = self.0.known.read();
        NEEDED.iter().all(|needed| known.complete.contains(needed))
    }

    /// Settings of the Gateway.
    pub fn gateway(&self) -> Arc<WaypointGateway> {
        self.0.known.read().gateway.clone()
    }

    /// A service, if the waypoint serves it.
    pub fn service(&self, name: &NamespacedHostname) -> Option<Arc<Served>> {
        self.0.known.read().services.get(name).cloned()
    }

    /// Destination rule of a service, if there is one.
    pub(crate) fn destination(&self, name: &NamespacedHostname) -> Option<Arc<Ruled>> {
        self.0.known.read().destinations.get(name).cloned()
    }

    /// The telemetry of requests that concern these services, or of a pod of a namespace.
    pub(crate) fn telemetry_config(
        &self,
        services: &[NamespacedHostname],
        namespace: &str,
    ) -> Option<Arc<TelemetryConfig>> {
        if !self.0.tells.load(Ordering::Relaxed) {
            return None;
        }
        self.0
            .known
            .read()
            .telemetry_configs
            .of(services, namespace)
            .cloned()
    }

    /// The object for which requests are judged, authenticated, seen by a plugin or limited, so that a port whose protocol
    /// nobody declares must be HTTP; `None` if there is no such object.
    pub(crate) fn http_object(&self, attachments: &Attachments) -> Option<String> {
        if let Some(key) = self.policies().http_policy(attachments.scope()) {
            return Some(format!("AuthorizationPolicy {key}"));
        }
        if let Some(key) = self.authentications().http_object(attachments.services()) {
            return Some(format!("RequestAuthentication {key}"));
        }
        let chain = self.extensions();
        if let Some(plugin) = chain.as_ref().and_then(|chain| chain.first(attachments)) {
            let WaypointExtension {
                namespace, name, ..
            } = &plugin.config;
            return Some(format!("plugin {namespace}/{name}"));
        }
        let limits = self.limits()?.of(attachments.services());
        let first = limits.first()?;
        Some(format!("rate limit {}", first.config.key))
    }

    /// Whether there is an object for [`Self::http_object`].
    pub(crate) fn need_http(&self, attachments: &Attachments) -> bool {
        self.http_object(attachments).is_some()
    }

    /// Which addresses are called for what objects name.
    pub(crate) fn guard(&self) -> &Guard {
        &self.0.guard
    }

    /// Queues for collectors.
    pub(crate) fn exporters(&self) -> &Exporters {
        &self.0.exporters
    }
    /// The plugins that requests are given to; `None` if there are none.
    pub(crate) fn extensions(&self) -> Option<Arc<Chain>> {
        if !self.0.is_extended.load(Ordering::Acquire) {
            return None;
        }
        Some(self.0.known.read().extensions.chain().clone())
    }

    /// Sets the limits of plugins' instances.
    pub(crate) fn limit_extensions(&self, limits: Limits) {
        self.0.known.write().extensions.limits = limits;
    }

    /// Rate limits of requests; `None` without any.
    pub(crate) fn limits(&self) -> Option<Arc<OfRequests>> {
        if !self.0.is_limited.load(Ordering::Acquire) {
            return None;
        }
        Some(self.0.known.read().limits.of_requests().clone())
    }

    /// The newest versions of all plugins.
    pub(crate) fn wanted_extensions(&self) -> Vec<Arc<Plugin>> {
        self.0.known.read().extensions.wanted()
    }

    /// The state of a plugin's module has changed.
    pub(crate) fn extension_loaded(&self) {
        self.0.known.write().extensions.renew();
        self.0.changes.send_modify(|count| *count += 1);
    }

    /// The plugins, for `/config_dump`.
    pub(crate) fn dump_extensions(&self) -> serde_json::Value {
        self.0.known.read().extensions.dump()
    }

    /// Policies of the waypoint.
    pub fn policies(&self) -> Arc<Policies> {
        self.0.known.read().policies.clone()
    }

    /// Whose tokens are taken.
    pub fn authentications(&self) -> Arc<Authentications> {
        self.0.known.read().authentications.clone()
    }

    /// The services whose records are needed: those that are served, and those that routes lead to.
    pub fn needed(&self) -> Vec<NamespacedHostname> {
        let known = self.0.known.read();
        let services = known.services.values();
        let mut names: Vec<_> = services
            .flat_map(|served| std::iter::once(&served.name).chain(served.backends()))
            .cloned()
            .collect();
        let providers = known
            .policies
            .iter()
            .filter_map(|policy| policy.provider.as_ref());
        let places = providers.filter_map(|provider| provider.place.as_ref().ok());
        names.extend(places.map(|(service, _)| service.clone()));
        names.extend(known.limits.callees().cloned());
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The namespaces of the objects for which calls are made.
    pub(crate) fn calling_namespaces(&self) -> BTreeSet<ArcStr> {
        let known = self.0.known.read();
        let plugins = known.extensions.wanted().into_iter();
        let plugins = plugins.map(|plugin| plugin.config.namespace.clone());
        plugins.chain(known.limits.calling_namespaces()).collect()
    }

    /// Counts changes of any of it.
    pub(crate) fn revision(&self) -> u64 {
        *self.0.changes.borrow()
    }

    /// Other services than before lead to pods.
    pub(crate) fn services_of_pods_changed(&self) {
        self.0.changes.send_modify(|count| *count += 1);
    }

    /// Changes of any of it.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }
}

impl Known {
    /// Applies a change; gives what is no more by it.
    fn apply(&mut self, update: WaypointUpdate, exporters: &Exporters) -> Option<Gone> {
        match update {
            WaypointUpdate::Gateway(gateway) => self.gateway = Arc::new(*gateway),
            // Its pods are about to be ended; requests under way keep their settings.
            WaypointUpdate::GatewayGone => {}
            WaypointUpdate::Service(record, service) => {
                let served = Served::new(*service);
                self.service_names.insert(record, served.name.clone());
                self.services.insert(served.name.clone(), Arc::new(served));
            }
            WaypointUpdate::ServiceGone(record) => {
                if let Some(name) = self.service_names.remove(&record) {
                    self.services.remove(&name);
                }
            }
            WaypointUpdate::Policy(record, policy) => {
                self.policy_names.insert(record, policy.key.clone());
                Arc::make_mut(&mut self.policies).insert(*policy);
            }
            WaypointUpdate::PolicyGone(record) => {
                let key = self.policy_names.remove(&record)?;
                Arc::make_mut(&mut self.policies).remove(&key);
                return Some(Gone::Policy(key));
            }
            WaypointUpdate::Authentication(record, authentication) => {
                self.authentication_names
                    .insert(record, authentication.key.clone());
                Arc::make_mut(&mut self.authentications).insert(*authentication);
            }
            WaypointUpdate::AuthenticationGone(record) => {
                let key = self.authentication_names.remove(&record)?;
                Arc::make_mut(&mut self.authentications).remove(&key);
            }
            WaypointUpdate::Destination(record, destination) => {
                let name = destination.service.clone();
                let before = self.destinations.get(&name);
                let ruled = Ruled::new(*destination, before.map(|before| &**before));
                self.destination_names.insert(record, name.clone());
                self.destinations.insert(name, Arc::new(ruled));
            }
            WaypointUpdate::DestinationGone(record) => {
                let name = self.destination_names.remove(&record)?;
                self.destinations.remove(&name);
                return Some(Gone::Destination(name));
            }
            WaypointUpdate::Telemetry(record, sent) => {
                let scope = sent.scope.clone();
                match TelemetryConfig::new(*sent, exporters) {
                    Ok(telemetry_config) => {
                        self.telemetry_configs
                            .insert(record, scope, telemetry_config)
                    }
                    Err(error) => {
                        tracing::warn!(%record, %error, "telemetry that cannot be used, what was told before stays");
                    }
                }
            }
            WaypointUpdate::TelemetryGone(record) => self.telemetry_configs.remove(&record),
            WaypointUpdate::RateLimit(record, config) => self.limits.put(record, *config),
            WaypointUpdate::RateLimitGone(record) => self.limits.remove(&record),
            WaypointUpdate::Extension(record, config) => self.extensions.put(record, *config),
            WaypointUpdate::ExtensionGone(record) => self.extensions.remove(&record),
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use ambit_l7::authz::Scope;

    use super::*;

    fn service(name: &str, backend: &str) -> WaypointUpdate {
        let rule = ambit_model::HttpRouteRule {
            backends: vec![HttpBackend {
                service: Ok(NamespacedHostname::new("ns", backend)),
                port: 80,
                subset: None,
                weight: 1,
                filters: Vec::new(),
            }],
            ..Default::default()
        };
        let route = HttpRoute {
            rules: vec![rule],
            ..HttpRoute::default()
        };
        WaypointUpdate::Service(
            arcstr::format!("gw/w/ns/{name}"),
            Box::new(WaypointService {
                service: NamespacedHostname::new("ns", name),
                routes: vec![route],
                ..WaypointService::default()
            }),
        )
    }

    #[test]
    fn nothing_is_known_before_every_type_was_received() {
        let published = Published::default();
        for needed in NEEDED {
            assert!(!published.is_known(), "{needed:?}");
            published.complete(needed);
        }
        assert!(published.is_known());
    }

    #[test]
    fn services_come_and_go_with_what_their_routes_need() {
        let published = Published::default();
        assert_eq!(published.apply([service("a", "b")]), []);
        let names: Vec<_> = published.needed().iter().map(ToString::to_string).collect();
        assert_eq!(names, ["ns/a", "ns/b"]);
        let served = published.service(&NamespacedHostname::new("ns", "a"));
        assert!(served.unwrap().routes(80, None).has_routes());
        assert!(
            published
                .service(&NamespacedHostname::new("ns", "b"))
                .is_none()
        );
        published.apply([WaypointUpdate::ServiceGone("gw/w/ns/a".into())]);
        assert!(published.needed().is_empty());
    }

    #[test]
    fn a_clients_namespace_has_its_own_routes_on_the_ports_that_they_are_for() {
        let route = |name: &str, clients: Option<&str>, ports: &[u16]| HttpRoute {
            name: ambit_model::RouteName {
                name: name.into(),
                ..Default::default()
            },
            ports: ports.to_vec(),
            clients: clients.map(ArcStr::from),
            rules: vec![ambit_model::HttpRouteRule::default()],
        };
        let served = Served::new(WaypointService {
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
            match table.choose(&request) {
                ambit_l7::route::Choice::Rule(rule, _) => rule.route.name.to_string(),
                other => format!("{other:?}"),
            }
        };
        assert_eq!(of(80, Some("bank")), "own");
        assert_eq!(of(81, Some("bank")), "all");
        assert_eq!(of(80, Some("shop")), "all");
        assert_eq!(of(80, None), "all");
    }

    #[test]
    fn a_policy_goes_by_the_name_of_its_record() {
        let published = Published::default();
        let policy = ambit_model::HttpPolicy {
            key: PolicyKey::of_record("ns/p"),
            for_gateway: true,
            ..Default::default()
        };
        let record = ArcStr::from("gw/w/ns/p");
        published.apply([WaypointUpdate::Policy(record.clone(), Box::new(policy))]);
        assert_eq!(published.policies().iter().count(), 1);
        assert!(!published.policies().need_http(Scope::Pod(&[])));
        let removed = published.apply([WaypointUpdate::PolicyGone(record)]);
        assert_eq!(removed, [Gone::Policy(PolicyKey::of_record("ns/p"))]);
        assert_eq!(published.policies().iter().count(), 0);
    }
}
