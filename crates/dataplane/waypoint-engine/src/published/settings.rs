//! Store of the settings of the waypoint's Gateway.

use std::sync::Arc;

use ambit_egress::Guard;
use ambit_model::{ArcStr, WaypointGateway};
use serde_json::Value;

use crate::record_store::{RecordStore, RemovedRecord, to_json};

/// Store of the published settings of the waypoint's Gateway.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) gateway: Arc<WaypointGateway>,
    /// Egress guard, which is updated with the addresses that the Gateway allows.
    pub(super) guard: Guard,
}

impl RecordStore for Settings {
    type Record = WaypointGateway;

    const BLOCKS_READINESS: bool = true;

    fn put(&mut self, _resource: ArcStr, record: WaypointGateway) {
        let cluster = record.cluster_addresses.clone();
        self.guard.update(record.allowed_addresses.clone(), cluster);
        self.gateway = Arc::new(record);
    }

    /// Keeps the settings after the Gateway was deleted, for requests in flight: the waypoint's pods are about to be
    /// terminated.
    fn remove(&mut self, _resource: &ArcStr) -> Option<RemovedRecord> {
        None
    }

    fn dump(&self) -> Value {
        to_json(&*self.gateway)
    }
}
