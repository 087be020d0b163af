//! Store of the destination rules of services.

use std::{collections::HashMap, sync::Arc, time::Instant};

use ambit_model::{ArcStr, NamespacedHostname, WaypointDestination};
use serde_json::Value;

use crate::{
    destination::DestinationRuleState,
    record_store::{RecordStore, RemovedRecord},
};

/// Services with a `DestinationRule` or `BackendTLSPolicy`, and the state of their ports.
#[derive(Debug, Default)]
pub(super) struct Destinations {
    by_service: HashMap<NamespacedHostname, Arc<DestinationRuleState>>,
    /// Service of each published record, by xDS resource name.
    services: HashMap<ArcStr, NamespacedHostname>,
}

impl Destinations {
    pub(super) fn get(&self, service: &NamespacedHostname) -> Option<&Arc<DestinationRuleState>> {
        self.by_service.get(service)
    }
}

impl RecordStore for Destinations {
    type Record = WaypointDestination;

    /// Whether requests wait for the initial records of destination rules: without them, requests would be sent in
    /// plaintext where a rule requires TLS.
    const BLOCKS_READINESS: bool = true;

    fn put(&mut self, resource: ArcStr, record: WaypointDestination) {
        let name = record.service.clone();
        let before = self.by_service.get(&name);
        let entry = DestinationRuleState::new(record, before.map(|before| &**before));
        self.services.insert(resource, name.clone());
        self.by_service.insert(name, Arc::new(entry));
    }

    fn remove(&mut self, resource: &ArcStr) -> Option<RemovedRecord> {
        let name = self.services.remove(resource)?;
        self.by_service.remove(&name);
        Some(RemovedRecord::Destination(name))
    }

    fn dump(&self) -> Value {
        let mut all: Vec<_> = self.by_service.values().collect();
        all.sort_by(|a, b| a.service().cmp(b.service()));
        let now = Instant::now();
        all.into_iter().map(|entry| entry.dump(now)).collect()
    }
}
