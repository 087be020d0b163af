//! Records that proxies receive from the control plane, and changes of records.

use std::sync::Arc;

use ambit_model::{
    self as model, AppProtocol, Authorization, IsWaypointRecord, NamespacedHostname, PolicyKey,
    WaypointRecord, WaypointRecordKey, Workload, WorkloadUid,
};

/// Changed records of one type, by name; `None` for a removed record.
pub type ChangedRecords<N, R> = Vec<(N, Option<Arc<R>>)>;

/// Changed records of all types, sorted by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delta {
    /// Changed workload records, by uid.
    pub workloads: ChangedRecords<WorkloadUid, Workload>,
    /// Changed service records, by namespace and host name.
    pub services: ChangedRecords<NamespacedHostname, ServiceRecord>,
    /// Changed layer 4 policies, which node proxies enforce.
    pub policies: ChangedRecords<PolicyKey, Authorization>,
    /// Changed records for waypoints, of all types.
    pub waypoint_records: ChangedRecords<WaypointRecordKey, WaypointRecord>,
}

impl Delta {
    /// Whether no record changed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn sort(&mut self) {
        self.workloads.sort_by(|a, b| a.0.cmp(&b.0));
        self.services.sort_by(|a, b| a.0.cmp(&b.0));
        self.policies.sort_by(|a, b| a.0.cmp(&b.0));
        self.waypoint_records.sort_by(|a, b| a.0.cmp(&b.0));
    }

    /// Returns the number of changed records.
    pub fn len(&self) -> usize {
        self.workloads.len()
            + self.services.len()
            + self.policies.len()
            + self.waypoint_records.len()
    }

    /// Returns the changed records for waypoints of one type.
    pub fn waypoint_records_of<R: IsWaypointRecord>(
        &self,
    ) -> impl Iterator<Item = (&WaypointRecordKey, Option<&R>)> {
        let all = self.waypoint_records.iter();
        let of_type = all.filter(|(key, _)| key.record_type == R::TYPE);
        of_type.map(|(key, record)| (key, record.as_deref().and_then(R::from_record)))
    }
}

/// Record of a service, with fields that only some receivers get.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceRecord {
    /// Service record in the form that all receivers get.
    pub service: model::Service,
    /// Application protocols of the service's ports, in their order: a TCP and a UDP port may have the same number.
    pub app_protocols: Vec<AppProtocol>,
    /// Whether ingress gateways send requests through the service's waypoint rather than to its endpoints.
    pub ingress_use_waypoint: bool,
}
