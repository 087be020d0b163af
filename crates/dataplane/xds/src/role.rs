//! Kinds of programs with an xDS client, and the resource types that each subscribes to.

use ambit_model::WaypointRecordType;
use ambit_wire::{
    encode::{ADDRESS_TYPE_URL, AUTHORIZATION_TYPE_URL},
    records,
};
use ambit_xds_core::{TypeConfig, TypeIndex};

/// Kind of program that an xDS client runs in, which determines its subscriptions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Node proxy, which subscribes to workloads, services, and layer 4 policies.
    #[default]
    NodeProxy,
    /// Waypoint, which subscribes to workloads, services, and the records of its Gateway.
    Waypoint,
}

/// Resource type that the client can decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceType {
    /// Workloads and services (WDS).
    Address,
    /// Layer 4 authorization policies.
    Policy,
    /// Records of a waypoint, of one record type.
    Waypoint(WaypointRecordType),
}

/// Index of [`ResourceType::Address`] for every role. Only this type can be requested on demand.
pub(crate) const ADDRESS_TYPE_INDEX: TypeIndex = 0;

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
    fn resource_types(self) -> impl Iterator<Item = ResourceType> {
        let (own, of_waypoints): (&[_], &[_]) = match self {
            Self::NodeProxy => (&[ResourceType::Address, ResourceType::Policy], &[]),
            Self::Waypoint => (&[ResourceType::Address], WaypointRecordType::ALL),
        };
        let own = own.iter().copied();
        own.chain(of_waypoints.iter().copied().map(ResourceType::Waypoint))
    }

    /// Iterates over the type URLs that the role subscribes to.
    pub fn type_urls(self) -> impl Iterator<Item = &'static str> {
        self.resource_types().map(ResourceType::type_url)
    }

    /// Returns the subscriptions of the role; a subscription's position is the index of its type ([`TypeIndex`]).
    pub(crate) fn subscriptions(self, on_demand: bool) -> Vec<TypeConfig> {
        let config = |resource: ResourceType| TypeConfig {
            type_url: resource.type_url().into(),
            on_demand: on_demand && resource == ResourceType::Address,
        };
        self.resource_types().map(config).collect()
    }

    /// Returns the resource type with this index, if the role has one.
    pub(crate) fn resource_type(self, kind: TypeIndex) -> Option<ResourceType> {
        self.resource_types().nth(kind)
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
