//! Types of resources that are served over xDS, with their names in the protocol, in status and in metrics.

use ambit_model::WaypointRecordType;
use ambit_wire::{
    encode::{ADDRESS_TYPE_URL, AUTHORIZATION_TYPE_URL, WORKLOAD_TYPE_URL},
    records,
};

/// Type of resource. Ordered as pushes go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceType {
    /// Policies of layer 4.
    Authorization,
    /// Workloads and services.
    Address,
    /// Workloads without services.
    Workload,
    /// Records of waypoints.
    Waypoint(WaypointRecordType),
}

impl ResourceType {
    /// Iterates over all types in push order.
    pub fn all() -> impl Iterator<Item = Self> {
        let of_nodes = [Self::Authorization, Self::Address, Self::Workload];
        let of_waypoints = WaypointRecordType::ALL.iter().copied();
        of_nodes.into_iter().chain(of_waypoints.map(Self::Waypoint))
    }

    /// Type with a URL.
    pub fn from_type_url(url: &str) -> Option<Self> {
        Self::all().find(|one| one.type_url() == url)
    }

    /// URL of the type.
    pub fn type_url(self) -> &'static str {
        match self {
            Self::Authorization => AUTHORIZATION_TYPE_URL,
            Self::Address => ADDRESS_TYPE_URL,
            Self::Workload => WORKLOAD_TYPE_URL,
            Self::Waypoint(of) => records::type_url(of),
        }
    }

    /// Short name, for status and metrics.
    pub fn short_name(self) -> &'static str {
        match self {
            Self::Authorization => "WADS",
            Self::Address => "WDS",
            Self::Workload => "WLDS",
            Self::Waypoint(of) => records::short_name(of),
        }
    }
}
