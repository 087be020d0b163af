//! Roles of clients, which determine the resource types that they subscribe to.

use ambit_model::WaypointRecordType;
use ambit_wire::{
    encode::{ADDRESS_TYPE_URL, AUTHORIZATION_TYPE_URL},
    records,
};
use ambit_xds_core::{TypeConfig, TypeIndex};

/// Program that an xDS client belongs to, which determines its subscriptions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Node proxy, which subscribes to workloads, services, and layer 4 policies.
    #[default]
    NodeProxy,
    /// Waypoint, which subscribes to workloads, services, and the records of its Gateway.
    Waypoint,
}

/// Resource type that the client understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceType {
    /// Workloads and services (WDS).
    Address,
    /// Layer 4 authorization policies.
    Policy,
    /// Records of a waypoint.
    Waypoint(WaypointRecordType),
}

/// Index of [`ResourceType::Address`] for every role; the one type that can be requested on demand.
pub(crate) const ADDRESSES: TypeIndex = 0;

impl Role {
    /// Returns the role's name, which is the first part of the client's node id.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::NodeProxy => "ztunnel",
            Self::Waypoint => "waypoint",
        }
    }

    /// Iterates over the resource types of the role, for waypoints in the order of pushes: settings and policies
    /// first.
    fn resources(self) -> impl Iterator<Item = ResourceType> {
        let (own, of_waypoints): (&[_], &[_]) = match self {
            Self::NodeProxy => (&[ResourceType::Address, ResourceType::Policy], &[]),
            Self::Waypoint => (&[ResourceType::Address], WaypointRecordType::ALL),
        };
        let own = own.iter().copied();
        own.chain(of_waypoints.iter().copied().map(ResourceType::Waypoint))
    }

    /// Iterates over the type URLs that the role subscribes to.
    pub fn type_urls(self) -> impl Iterator<Item = &'static str> {
        self.resources().map(ResourceType::type_url)
    }

    /// Returns the subscriptions of the role, in the order of their [`Kind`].
    pub(crate) fn types(self, on_demand: bool) -> Vec<TypeConfig> {
        let config = |resource: ResourceType| TypeConfig {
            type_url: resource.type_url().into(),
            on_demand: on_demand && resource == ResourceType::Address,
        };
        self.resources().map(config).collect()
    }

    /// Returns the resource type with an index.
    pub(crate) fn resource(self, kind: TypeIndex) -> Option<ResourceType> {
        self.resources().nth(kind)
    }
}

impl ResourceType {
    /// Returns the type URL of the resource type.
    pub fn type_url(self) -> &'static str {
        match self {
            Self::Address => ADDRESS_TYPE_URL,
            Self::Policy => AUTHORIZATION_TYPE_URL,
            Self::Waypoint(of) => records::type_url(of),
        }
    }
}
