//! Records of the mesh, and their changes.

use std::sync::Arc;

use ambit_model::{
    self as model, AppProtocol, Authorization, IsWaypointRecord, NamespacedHostname, PolicyKey,
    WaypointRecord, WaypointRecordKey, Workload, WorkloadUid,
};

/// Records that changed, by name; `None` is one that is gone.
pub type Changed<N, R> = Vec<(N, Option<Arc<R>>)>;

/// The records that changed; `None` is a record that is gone. Sorted by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delta {
    /// Records of workloads.
    pub workloads: Changed<WorkloadUid, Workload>,
    /// Records of services.
    pub services: Changed<NamespacedHostname, ServiceRecord>,
    /// Policies of layer 4.
    pub policies: Changed<PolicyKey, Authorization>,
    /// Records of waypoints.
    pub waypoint_records: Changed<WaypointRecordKey, WaypointRecord>,
}

impl Delta {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn sort(&mut self) {
        self.workloads.sort_by(|a, b| a.0.cmp(&b.0));
        self.services.sort_by(|a, b| a.0.cmp(&b.0));
        self.policies.sort_by(|a, b| a.0.cmp(&b.0));
        self.waypoint_records.sort_by(|a, b| a.0.cmp(&b.0));
    }

    /// How many records changed.
    pub fn len(&self) -> usize {
        self.workloads.len()
            + self.services.len()
            + self.policies.len()
            + self.waypoint_records.len()
    }

    /// Changed records of waypoints of one type.
    pub fn records_of<R: IsWaypointRecord>(
        &self,
    ) -> impl Iterator<Item = (&WaypointRecordKey, Option<&R>)> {
        let all = self.waypoint_records.iter();
        let of_type = all.filter(|(key, _)| key.record_type == R::TYPE);
        of_type.map(|(key, record)| (key, record.as_deref().and_then(R::of)))
    }
}

/// A service as it is sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceRecord {
    /// Record of the service.
    pub service: model::Service,
    /// Application protocols of its ports, in their order: two ports may have one number, of which one is UDP's.
    pub app_protocols: Vec<AppProtocol>,
    /// Whether ingress gateways send through its waypoint rather than to its endpoints.
    pub ingress_use_waypoint: bool,
}
