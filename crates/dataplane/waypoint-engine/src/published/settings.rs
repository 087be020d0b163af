//! Settings of the waypoint.

use std::sync::Arc;

use ambit_egress::Guard;
use ambit_model::{ArcStr, WaypointGateway};
use serde_json::Value;

use crate::record_store::{Gone, RecordStore, shown};

/// Settings of the waypoint's Gateway.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) gateway: Arc<WaypointGateway>,
    /// Follows the addresses that may be called.
    pub(super) guard: Guard,
}

impl RecordStore for Settings {
    type Record = WaypointGateway;

    const IS_NEEDED: bool = true;

    fn put(&mut self, _resource: ArcStr, record: WaypointGateway) {
        let cluster = record.cluster_addresses.clone();
        self.guard.update(record.allowed_addresses.clone(), cluster);
        self.gateway = Arc::new(record);
    }

    /// The waypoint's pods are about to be ended; requests under way keep their settings.
    fn remove(&mut self, _resource: &ArcStr) -> Option<Gone> {
        None
    }

    fn dump(&self) -> Value {
        shown(&*self.gateway)
    }
}
