//! Records that the rendering of one object or host yields.

use ambit_model::{Authorization, GatewayName, WaypointRecord, Workload};

use crate::{problem::Note, records::ServiceRecord};

/// Records rendered from an object, a host, or the whole mesh.
#[derive(Debug, Default)]
pub(crate) struct RenderedRecords {
    pub(crate) workloads: Vec<Workload>,
    pub(crate) services: Vec<ServiceRecord>,
    pub(crate) policies: Vec<Authorization>,
    /// Records for waypoints, each with the Gateway of the waypoint that receives it.
    pub(crate) waypoint_records: Vec<(GatewayName, WaypointRecord)>,
    /// Notes on parts of an object that have no effect because other objects take precedence.
    pub(crate) conflicts: Vec<Note>,
}

impl RenderedRecords {
    /// Adds records of one type for waypoints.
    pub(crate) fn add_waypoint_records<R: Into<WaypointRecord>>(
        &mut self,
        records: impl IntoIterator<Item = (GatewayName, R)>,
    ) {
        let records = records.into_iter();
        self.waypoint_records
            .extend(records.map(|(gateway, record)| (gateway, record.into())));
    }

    /// Returns rendered records that are all for waypoints.
    pub(crate) fn from_waypoint_records<R: Into<WaypointRecord>>(
        records: impl IntoIterator<Item = (GatewayName, R)>,
    ) -> Self {
        let mut rendered = Self::default();
        rendered.add_waypoint_records(records);
        rendered
    }
}
