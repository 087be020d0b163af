//! Records that the control plane has published for this waypoint. One store per record type converts the records to
//! the form that requests use.

mod destinations;
mod policies;
mod served;
mod settings;

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use ambit_egress::Guard;
use ambit_jwt::RequestAuthentications;
use ambit_l7::authz::Policies;
use ambit_model::{
    ArcStr, NamespacedHostname, WaypointExtension, WaypointGateway, WaypointRecord,
    WaypointRecordType,
};
use ambit_wasm::Limits;
use ambit_xds::WaypointUpdate;
use parking_lot::RwLock;
use serde_json::{Map, Value};
use tokio::sync::watch;

use crate::{
    attachments::Attachments,
    destination::DestinationRuleState,
    extensions::{Extensions, Plugin, PluginChain},
    rate_limits::{Limiters, RequestLimits},
    record_store::RecordStore,
    telemetry_config::{Exporters, TelemetryConfig, TelemetryConfigs},
};

use destinations::Destinations;
use policies::{AuthenticationStore, PolicyStore};
pub use served::ServedService;
use served::Services;
use settings::Settings;

pub use crate::record_store::RemovedRecord;

/// Configuration of this waypoint from the control plane. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct PublishedConfig(Arc<PublishedInner>);

#[derive(Debug)]
struct PublishedInner {
    records: RwLock<ConfigRecords>,
    /// Whether any telemetry is configured: without it, requests do not take the lock.
    has_telemetry: AtomicBool,
    exporters: Arc<Exporters>,
    /// Egress guard, which decides which addresses may be called.
    guard: Guard,
    /// Revision of the configuration: its number of changes so far.
    revision: watch::Sender<u64>,
    /// Whether any plugin is configured: without one, requests do not take the lock.
    has_plugins: AtomicBool,
    /// Whether any rate limit is configured: without one, requests do not take the lock.
    has_rate_limits: AtomicBool,
}

impl Default for PublishedInner {
    fn default() -> Self {
        let (exporters, guard) = (Arc::<Exporters>::default(), Guard::default());
        let known = ConfigRecords {
            telemetry_configs: TelemetryConfigs::new(Arc::clone(&exporters)),
            settings: Settings {
                guard: guard.clone(),
                ..Settings::default()
            },
            ..ConfigRecords::default()
        };
        Self {
            records: RwLock::new(known),
            has_telemetry: AtomicBool::default(),
            exporters,
            guard,
            revision: watch::Sender::default(),
            has_plugins: AtomicBool::default(),
            has_rate_limits: AtomicBool::default(),
        }
    }
}

#[derive(Debug, Default)]
struct ConfigRecords {
    settings: Settings,
    services: Services,
    policies: PolicyStore,
    authentications: AuthenticationStore,
    destinations: Destinations,
    telemetry_configs: TelemetryConfigs,
    extensions: Extensions,
    limits: Limiters,
    /// Record types of which the complete initial set has been received.
    complete_types: Vec<WaypointRecordType>,
}

/// Generates the functions that dispatch a published record to the store of its record type.
macro_rules! stores {
    ($($variant:ident: $field:ident,)*) => {
        impl ConfigRecords {
            /// Applies an update to the store of its type. Returns the removed object, if its metrics must be removed
            /// too.
            fn apply(&mut self, update: WaypointUpdate) -> Option<RemovedRecord> {
                match update {
                    $(
                        WaypointUpdate::Upserted(resource, WaypointRecord::$variant(record)) => {
                            RecordStore::put(&mut self.$field, resource, *record);
                            None
                        }
                        WaypointUpdate::Removed(WaypointRecordType::$variant, resource) => {
                            RecordStore::remove(&mut self.$field, &resource)
                        }
                    )*
                }
            }

            /// Dumps the records of all types with their state.
            fn dump(&self) -> Value {
                let mut all = Map::new();
                $(
                    let section = WaypointRecordType::$variant.config_dump_key().to_owned();
                    all.insert(section, RecordStore::dump(&self.$field));
                )*
                all.into()
            }

            /// Whether requests wait until the initial records of a type have been received.
            fn is_needed(&self, of: WaypointRecordType) -> bool {
                match of {
                    $(WaypointRecordType::$variant => is_needed(&self.$field),)*
                }
            }
        }
    };
}

stores! {
    Policy: policies,
    Gateway: settings,
    Service: services,
    Destination: destinations,
    Authentication: authentications,
    Extension: extensions,
    Telemetry: telemetry_configs,
    RateLimit: limits,
}

fn is_needed<S: RecordStore>(_store: &S) -> bool {
    S::BLOCKS_READINESS
}

impl PublishedConfig {
    /// Applies updates of published records. Returns the removed objects whose metrics must be removed too.
    pub fn apply(&self, updates: impl IntoIterator<Item = WaypointUpdate>) -> Vec<RemovedRecord> {
        let removed = {
            let mut known = self.0.records.write();
            let removed = updates.into_iter().filter_map(|update| known.apply(update));
            let removed = removed.collect();
            self.0
                .has_telemetry
                .store(!known.telemetry_configs.is_empty(), Ordering::Relaxed);
            let is_extended = !known.extensions.chain().0.is_empty();
            self.0.has_plugins.store(is_extended, Ordering::Release);
            let is_limited = !known.limits.is_empty();
            self.0.has_rate_limits.store(is_limited, Ordering::Release);
            removed
        };
        self.0.revision.send_modify(|count| *count += 1);
        removed
    }

    /// Marks the initial records of a type as completely received.
    pub fn mark_complete(&self, record_type: WaypointRecordType) {
        let mut known = self.0.records.write();
        if !known.complete_types.contains(&record_type) {
            known.complete_types.push(record_type);
        }
        drop(known);
        self.0.revision.send_modify(|count| *count += 1);
    }

    /// Waits until the configuration is complete enough to serve ([`Self::is_complete`]).
    pub async fn wait_until_complete(&self) {
        let mut changes = self.watch();
        while !self.is_complete() {
            // Cannot fail: `self` owns the sender.
            let _changed = changes.changed().await;
        }
    }

    /// Whether the initial records of all needed types have been received. Before that, the waypoint cannot authorize
    /// requests.
    pub fn is_complete(&self) -> bool {
        let known = self.0.records.read();
        let mut all = WaypointRecordType::ALL.iter();
        all.all(|of| !known.is_needed(*of) || known.complete_types.contains(of))
    }

    /// Returns the settings of the Gateway.
    pub fn gateway(&self) -> Arc<WaypointGateway> {
        self.0.records.read().settings.gateway.clone()
    }

    /// Returns the routes and settings of a service, if the waypoint serves it.
    pub fn service(&self, name: &NamespacedHostname) -> Option<Arc<ServedService>> {
        self.0.records.read().services.get(name).cloned()
    }

    /// Returns the services that the waypoint serves, by name.
    pub(crate) fn services(&self) -> Vec<Arc<ServedService>> {
        let mut all: Vec<_> = self.0.records.read().services.values().cloned().collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Returns the `DestinationRule` state of a service, if it has a rule.
    pub(crate) fn destination(
        &self,
        name: &NamespacedHostname,
    ) -> Option<Arc<DestinationRuleState>> {
        self.0.records.read().destinations.get(name).cloned()
    }

    /// Returns the telemetry configuration for requests to these services, or to a pod of this namespace.
    pub(crate) fn telemetry_config(
        &self,
        services: &[NamespacedHostname],
        namespace: &str,
    ) -> Option<Arc<TelemetryConfig>> {
        if !self.0.has_telemetry.load(Ordering::Relaxed) {
            return None;
        }
        self.0
            .records
            .read()
            .telemetry_configs
            .effective(services, namespace)
            .cloned()
    }

    /// Returns the name of an applicable object (policy, JWT rule, plugin or rate limit) that needs HTTP requests, so
    /// that a port with undeclared protocol must be HTTP; `None` if there is none.
    pub(crate) fn object_requiring_http(&self, attachments: &Attachments) -> Option<String> {
        if let Some(key) = self.policies().first_http_policy(attachments.scope()) {
            return Some(format!("AuthorizationPolicy {key}"));
        }
        if let Some(key) = self
            .authentications()
            .first_policy_needing_http(attachments.services())
        {
            return Some(format!("RequestAuthentication {key}"));
        }
        let chain = self.extensions();
        if let Some(plugin) = chain
            .as_ref()
            .and_then(|chain| chain.first_plugin_for(attachments))
        {
            let WaypointExtension {
                namespace, name, ..
            } = &plugin.config;
            return Some(format!("plugin {namespace}/{name}"));
        }
        let limits = self.limits()?.for_services(attachments.services());
        let first = limits.first()?;
        Some(format!("rate limit {}", first.config.key))
    }

    /// Whether a policy, JWT rule, plugin or rate limit applies that needs HTTP requests
    /// ([`Self::object_requiring_http`]).
    pub(crate) fn requires_http(&self, attachments: &Attachments) -> bool {
        self.object_requiring_http(attachments).is_some()
    }

    /// Returns the egress guard, which restricts the addresses that are called because objects name them.
    pub fn guard(&self) -> &Guard {
        &self.0.guard
    }

    /// Sets the environment variables that tags of spans may read.
    pub fn set_span_environment(&self, variables: Vec<(ArcStr, ArcStr)>) {
        self.exporters().set_environment(variables);
    }

    /// Returns the export queues of telemetry collectors.
    pub(crate) fn exporters(&self) -> &Exporters {
        &self.0.exporters
    }

    /// Returns the plugins in the order in which they run; `None` if none are configured.
    pub(crate) fn extensions(&self) -> Option<Arc<PluginChain>> {
        if !self.0.has_plugins.load(Ordering::Acquire) {
            return None;
        }
        Some(self.0.records.read().extensions.chain().clone())
    }

    /// Sets the memory and time limits of plugin instances.
    pub fn set_plugin_limits(&self, limits: Limits) {
        self.0.records.write().extensions.limits = limits;
    }

    /// Returns the rate limits by service; `None` if none are configured.
    pub(crate) fn limits(&self) -> Option<Arc<RequestLimits>> {
        if !self.0.has_rate_limits.load(Ordering::Acquire) {
            return None;
        }
        Some(self.0.records.read().limits.request_limits().clone())
    }

    /// Returns the newest version of every plugin, whether its module is loaded or not.
    pub(crate) fn desired_plugins(&self) -> Vec<Arc<Plugin>> {
        self.0.records.read().extensions.desired_plugins()
    }

    /// Rebuilds the chain of plugins after a module has been loaded or has failed to load.
    pub(crate) fn rebuild_plugin_chain(&self) {
        self.0.records.write().extensions.rebuild_chain();
        self.0.revision.send_modify(|count| *count += 1);
    }

    /// Returns the records with their state for `/config_dump`, without secrets.
    pub fn dump(&self) -> Value {
        self.0.records.read().dump()
    }

    /// Returns the authorization policies that apply at this waypoint.
    pub fn policies(&self) -> Arc<Policies> {
        self.0.records.read().policies.policies.clone()
    }

    /// Returns the JWT rules of RequestAuthentications.
    pub fn authentications(&self) -> Arc<RequestAuthentications> {
        self.0
            .records
            .read()
            .authentications
            .authentications
            .clone()
    }

    /// Returns the services whose records the waypoint must subscribe to: those that it serves, backends of routes,
    /// authorization providers, and rate-limit services.
    pub fn needed_services(&self) -> Vec<NamespacedHostname> {
        let known = self.0.records.read();
        let services = known.services.values();
        let mut names: Vec<_> = services
            .flat_map(|served| std::iter::once(&served.name).chain(served.backends()))
            .cloned()
            .collect();
        let providers = known
            .policies
            .policies
            .iter()
            .filter_map(|policy| policy.provider.as_ref());
        let places = providers.filter_map(|provider| provider.target.as_ref().ok());
        names.extend(places.map(|(service, _)| service.clone()));
        names.extend(known.limits.rate_limit_services().cloned());
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Returns the namespaces whose objects make the waypoint call services: each has an identity of its own for these
    /// calls.
    pub(crate) fn calling_namespaces(&self) -> BTreeSet<ArcStr> {
        let known = self.0.records.read();
        let plugins = known.extensions.desired_plugins().into_iter();
        let plugins = plugins.map(|plugin| plugin.config.namespace.clone());
        plugins.chain(known.limits.calling_namespaces()).collect()
    }

    /// Returns the revision of the configuration, which increases with every change.
    pub(crate) fn revision(&self) -> u64 {
        *self.0.revision.borrow()
    }

    /// Increases the revision of the configuration because the services that select some pods have changed, so that
    /// sessions look up their attachments again.
    pub(crate) fn notify_pod_services_changed(&self) {
        self.0.revision.send_modify(|count| *count += 1);
    }

    /// Returns a receiver of the configuration's revision, notified of every change.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.0.revision.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use ambit_l7::authz::Scope;
    use ambit_model::{HttpBackend, HttpRoute, PolicyKey, WaypointService};

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
        let service = WaypointService {
            service: NamespacedHostname::new("ns", name),
            routes: vec![route],
            ..WaypointService::default()
        };
        WaypointUpdate::Upserted(arcstr::format!("gw/w/ns/{name}"), service.into())
    }

    #[test]
    fn configuration_is_known_once_all_types_were_received() {
        let published = PublishedConfig::default();
        for needed in WaypointRecordType::ALL {
            // Requests may be served before telemetry is configured.
            if *needed != WaypointRecordType::Telemetry {
                assert!(!published.is_complete(), "{needed:?}");
                published.mark_complete(*needed);
            }
        }
        assert!(published.is_complete());
    }

    #[test]
    fn services_and_backends_of_their_routes_are_needed() {
        let published = PublishedConfig::default();
        assert_eq!(published.apply([service("a", "b")]), []);
        let names: Vec<_> = published
            .needed_services()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(names, ["ns/a", "ns/b"]);
        let served = published.service(&NamespacedHostname::new("ns", "a"));
        assert!(served.unwrap().routes(80, None).has_routes());
        assert!(
            published
                .service(&NamespacedHostname::new("ns", "b"))
                .is_none()
        );
        published.apply([WaypointUpdate::Removed(
            WaypointRecordType::Service,
            "gw/w/ns/a".into(),
        )]);
        assert!(published.needed_services().is_empty());
    }

    #[test]
    fn removed_record_removes_its_policy() {
        let published = PublishedConfig::default();
        let policy = ambit_model::HttpPolicy {
            key: PolicyKey::from_resource_name("ns/p"),
            for_gateway: true,
            ..Default::default()
        };
        let record = ArcStr::from("gw/w/ns/p");
        published.apply([WaypointUpdate::Upserted(record.clone(), policy.into())]);
        assert_eq!(published.policies().iter().count(), 1);
        assert!(!published.policies().needs_http(Scope::Pod(&[])));
        let removed =
            published.apply([WaypointUpdate::Removed(WaypointRecordType::Policy, record)]);
        assert_eq!(
            removed,
            [RemovedRecord::Policy(PolicyKey::from_resource_name("ns/p"))]
        );
        assert_eq!(published.policies().iter().count(), 0);
    }
}
