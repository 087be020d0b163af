//! Rendered records.

use ambit_model::{Authorization, GatewayName, WaypointRecord, Workload};

use crate::{problem::Note, records::ServiceRecord};

/// Records of an object, a host or the mesh.
#[derive(Debug, Default)]
pub(crate) struct Rendered {
    pub(crate) workloads: Vec<Workload>,
    pub(crate) services: Vec<ServiceRecord>,
    pub(crate) policies: Vec<Authorization>,
    /// Records of waypoints, each with its Gateway.
    pub(crate) waypoint_records: Vec<(GatewayName, WaypointRecord)>,
    /// Notes on parts of an object that have no effect because of others.
    pub(crate) conflicts: Vec<Note>,
}

impl Rendered {
    /// Adds records of waypoints.
    pub(crate) fn add<R: Into<WaypointRecord>>(
        &mut self,
        records: impl IntoIterator<Item = (GatewayName, R)>,
    ) {
        let records = records.into_iter();
        self.waypoint_records
            .extend(records.map(|(gateway, record)| (gateway, record.into())));
    }

    /// Returns records of waypoints alone.
    pub(crate) fn at_waypoints<R: Into<WaypointRecord>>(
        records: impl IntoIterator<Item = (GatewayName, R)>,
    ) -> Self {
        let mut rendered = Self::default();
        rendered.add(records);
        rendered
    }
}
