//! Roles of clients, which determine the resource types that they subscribe to.

use ambit_model::WaypointRecordType;
use ambit_wire::{
    encode::{ADDRESS_TYPE_URL, AUTHORIZATION_TYPE_URL},
    records,
};
use ambit_xds_core::{Kind, TypeConfig};

/// Role of an xDS client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// A node proxy: workloads, services, and the policies of layer 4.
    #[default]
    NodeProxy,
    /// Waypoint: workloads, services, and the records of its Gateway.
    Waypoint,
}

/// A type of resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Workloads and services (WDS).
    Address,
    /// Policies of layer 4.
    Policy,
    /// Records of a waypoint.
    Waypoint(WaypointRecordType),
}

/// Index of [`Resource::Address`], the one type that is requested on demand, for every role.
pub(crate) const ADDRESSES: Kind = 0;

impl Role {
    /// Returns the first part of the client's node id.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::NodeProxy => "ztunnel",
            Self::Waypoint => "waypoint",
        }
    }

    /// Types of a role. Waypoints receive settings and policies in the order of pushes.
    fn resources(self) -> impl Iterator<Item = Resource> {
        let (own, of_waypoints): (&[_], &[_]) = match self {
            Self::NodeProxy => (&[Resource::Address, Resource::Policy], &[]),
            Self::Waypoint => (&[Resource::Address], WaypointRecordType::ALL),
        };
        let own = own.iter().copied();
        own.chain(of_waypoints.iter().copied().map(Resource::Waypoint))
    }

    /// Returns the URLs of the types that the role subscribes to.
    pub fn type_urls(self) -> impl Iterator<Item = &'static str> {
        self.resources().map(Resource::type_url)
    }

    /// Returns the subscribed types, in the order of their [`Kind`].
    pub(crate) fn types(self, on_demand: bool) -> Vec<TypeConfig> {
        let config = |resource: Resource| TypeConfig {
            type_url: resource.type_url().into(),
            on_demand: on_demand && resource == Resource::Address,
        };
        self.resources().map(config).collect()
    }

    /// Returns the resource type of a [`Kind`].
    pub(crate) fn resource(self, kind: Kind) -> Option<Resource> {
        self.resources().nth(kind)
    }
}

impl Resource {
    /// Type URL of the resource.
    pub fn type_url(self) -> &'static str {
        match self {
            Self::Address => ADDRESS_TYPE_URL,
            Self::Policy => AUTHORIZATION_TYPE_URL,
            Self::Waypoint(of) => records::type_url(of),
        }
    }
}
