//! Configured plugins and their instances, one per worker and plugin.
//!
//! Records of the control plane become [`Plugin`]s ([`Extensions`], which does no IO). [`crate::plugins`] fetches and
//! compiles their modules on the main thread. Each worker has one `slot` per plugin. `http::extension` runs the plugins
//! on requests.

mod slot;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use ambit_model::{ArcStr, ExtensionPhase, WaypointExtension};
use ambit_wasm::{Limits, Metrics, Module, Settings};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    attachments::Attachments,
    record_store::{RecordStore, RemovedRecord, to_json},
};
pub(crate) use slot::{
    CallCause, OpenStreamFn, PluginContext, PluginInstance, PluginSlots, StreamEventHandler,
    WakeSignal,
};

/// One version of a configured plugin, created anew when its configuration changes.
pub(crate) struct Plugin {
    /// Number that is unique for each version of each plugin.
    pub(crate) version_id: u64,
    pub(crate) config: WaypointExtension,
    /// Key of the plugin's Kubernetes object, `namespace/name`.
    pub(crate) key: String,
    pub(crate) settings: Arc<Settings>,
    /// Metrics that the plugin's module defines. They are kept when the plugin is replaced by a new version.
    pub(crate) metrics: Metrics,
    pub(crate) counts: Arc<PluginCounters>,
    state: watch::Sender<PluginState>,
}

/// Counters of a plugin's failures and of their effect on requests.
#[derive(Debug, Default)]
pub(crate) struct PluginCounters {
    /// Number of plugin instances that failed.
    pub(crate) failures: AtomicU64,
    /// Number of requests rejected because the plugin failed.
    pub(crate) rejected_requests: AtomicU64,
    /// Number of requests that bypassed the plugin because it failed.
    pub(crate) bypassed_requests: AtomicU64,
}

impl PluginCounters {
    pub(crate) fn increment(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Loading state of a plugin's module.
#[derive(Clone, Debug)]
pub(crate) enum PluginState {
    /// The module is being fetched or compiled.
    Loading,
    /// The module is compiled.
    Ready(Module),
    /// The module cannot be fetched or compiled, with the reason.
    Failed(Arc<str>),
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugin")
            .field("config", &self.config)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

impl Plugin {
    fn new(number: u64, config: WaypointExtension, limits: Limits, before: Option<&Self>) -> Self {
        let environment = config.environment.iter();
        let settings = Settings {
            name: config.key(),
            root_id: config.plugin_name.to_string(),
            vm_id: config.key(),
            configuration: Bytes::copy_from_slice(config.configuration.as_bytes()),
            vm_configuration: Bytes::new(),
            environment: environment
                .map(|(name, value)| (name.to_string(), value.to_string()))
                .collect(),
            limits,
        };
        let state = match &config.unsupported {
            Some(why) => PluginState::Failed(why.as_str().into()),
            None => PluginState::Loading,
        };
        Self {
            version_id: number,
            key: config.key(),
            config,
            settings: Arc::new(settings),
            metrics: before
                .map(|before| before.metrics.clone())
                .unwrap_or_default(),
            counts: before
                .map(|before| before.counts.clone())
                .unwrap_or_default(),
            state: watch::Sender::new(state),
        }
    }

    pub(crate) fn state(&self) -> PluginState {
        self.state.borrow().clone()
    }

    pub(crate) fn watch_state(&self) -> watch::Receiver<PluginState> {
        self.state.subscribe()
    }

    pub(crate) fn set_state(&self, state: PluginState) {
        self.state.send_replace(state);
    }

    /// Whether the plugin's targets include the services or the pod of these attachments.
    fn applies_to(&self, attachments: &Attachments) -> bool {
        let config = &self.config;
        attachments.ports().any(|(service, port)| {
            let is_port = config.ports.is_empty() || config.ports.contains(&port);
            let is_service = service.is_some_and(|service| config.services.contains(service));
            is_port && (config.for_gateway || is_service)
        })
    }

    /// Returns the plugin's configuration, loading state and counters for `/config_dump`.
    fn dump(&self) -> Value {
        let (state, error) = match self.state() {
            PluginState::Loading => ("loading", None),
            PluginState::Ready(_) => ("ready", None),
            PluginState::Failed(why) => ("failed", Some(why.to_string())),
        };
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let phase = match self.config.phase {
            ExtensionPhase::Authn => "AUTHN",
            ExtensionPhase::Authz => "AUTHZ",
            ExtensionPhase::Stats => "STATS",
            ExtensionPhase::Unspecified => "UNSPECIFIED_PHASE",
        };
        json!({
            "name": self.key,
            "url": self.config.url.as_str(),
            "forGateway": self.config.for_gateway,
            "services": to_json(&self.config.services),
            "ports": self.config.ports,
            "phase": phase,
            "priority": self.config.priority,
            "failStrategy": if self.config.fail_open { "FAIL_OPEN" } else { "FAIL_CLOSE" },
            "state": state,
            "error": error,
            "failures": count(&self.counts.failures),
            "requestsRefused": count(&self.counts.rejected_requests),
            "requestsPassed": count(&self.counts.bypassed_requests),
        })
    }
}

/// Plugins of all targets, sorted in the order in which they run for a request.
#[derive(Debug, Default)]
pub(crate) struct PluginChain(pub(crate) Vec<Arc<Plugin>>);

impl PluginChain {
    /// Returns the plugins that run for requests with these attachments, in order.
    pub(crate) fn plugins_for(&self, attachments: &Attachments) -> Vec<Arc<Plugin>> {
        let all = self.0.iter();
        all.filter(|plugin| plugin.applies_to(attachments))
            .cloned()
            .collect()
    }

    /// Returns the first plugin that runs for requests with these attachments, if any.
    pub(crate) fn first_plugin_for(&self, attachments: &Attachments) -> Option<&Arc<Plugin>> {
        self.0.iter().find(|plugin| plugin.applies_to(attachments))
    }
}

/// Configured plugins of the waypoint.
#[derive(Debug, Default)]
pub(crate) struct Extensions {
    entries: BTreeMap<ArcStr, PluginEntry>,
    /// Memory and time limits of each plugin instance.
    pub(crate) limits: Limits,
    last_version_id: u64,
    chain: Arc<PluginChain>,
}

#[derive(Debug)]
struct PluginEntry {
    desired: Arc<Plugin>,
    /// Last version whose module has been loaded. Requests use it until the desired version is ready.
    last_loaded: Option<Arc<Plugin>>,
}

impl RecordStore for Extensions {
    type Record = WaypointExtension;

    /// Whether requests wait for the initial records of plugins: without them, requests would bypass plugins.
    const BLOCKS_READINESS: bool = true;

    fn put(&mut self, record: ArcStr, config: WaypointExtension) {
        let before = self.entries.remove(&record);
        let same = before
            .as_ref()
            .is_some_and(|before| before.desired.config == config);
        if let (true, Some(before)) = (same, before.as_ref()) {
            let entry = PluginEntry {
                desired: before.desired.clone(),
                last_loaded: before.last_loaded.clone(),
            };
            self.entries.insert(record, entry);
            return;
        }
        self.last_version_id += 1;
        let good = before.and_then(|before| match before.desired.state() {
            PluginState::Ready(_) => Some(before.desired),
            _ => before.last_loaded,
        });
        let desired = Arc::new(Plugin::new(
            self.last_version_id,
            config,
            self.limits,
            good.as_deref(),
        ));
        self.entries.insert(
            record,
            PluginEntry {
                desired,
                last_loaded: good,
            },
        );
        self.rebuild_chain();
    }

    fn remove(&mut self, record: &ArcStr) -> Option<RemovedRecord> {
        if self.entries.remove(record).is_some() {
            self.rebuild_chain();
        }
        None
    }

    fn dump(&self) -> Value {
        let all = self.entries.values().map(|entry| {
            let mut one = entry.desired.dump();
            let runs_older = entry.last_loaded.is_some();
            if let (true, Some(fields)) = (runs_older, one.as_object_mut()) {
                fields.insert(
                    "runs".to_owned(),
                    "the last version that could be loaded".into(),
                );
            }
            one
        });
        all.collect()
    }
}

impl Extensions {
    /// Rebuilds the chain of plugins after a record has changed or a module has been loaded.
    pub(crate) fn rebuild_chain(&mut self) {
        let mut plugins: Vec<_> = self
            .entries
            .values_mut()
            .map(PluginEntry::effective_plugin)
            .collect();
        plugins.sort_by(|a, b| a.config.sort_key().cmp(&b.config.sort_key()));
        self.chain = Arc::new(PluginChain(plugins));
    }

    pub(crate) fn chain(&self) -> &Arc<PluginChain> {
        &self.chain
    }

    /// Returns the newest version of every plugin, whether its module is loaded or not.
    pub(crate) fn desired_plugins(&self) -> Vec<Arc<Plugin>> {
        let desired = self.entries.values().map(|entry| entry.desired.clone());
        desired.collect()
    }
}

impl PluginEntry {
    /// Returns the version that requests use: the desired one, or the last loaded version while the desired module is
    /// loading or has failed.
    fn effective_plugin(&mut self) -> Arc<Plugin> {
        // A plugin with an unsupported configuration does not fall back to its previous version.
        let is_final = self.desired.config.unsupported.is_some();
        if is_final || matches!(self.desired.state(), PluginState::Ready(_)) {
            self.last_loaded = None;
        }
        self.last_loaded.as_ref().unwrap_or(&self.desired).clone()
    }
}
