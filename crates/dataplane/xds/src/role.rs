//! What a client is, and so which types of resources it follows.

use ambit_wire::encode::{
    ADDRESS_TYPE_URL, AUTHORIZATION_TYPE_URL, WAYPOINT_AUTHENTICATION_TYPE_URL,
    WAYPOINT_DESTINATION_TYPE_URL, WAYPOINT_GATEWAY_TYPE_URL, WAYPOINT_PLUGIN_TYPE_URL,
    WAYPOINT_POLICY_TYPE_URL, WAYPOINT_RATE_LIMIT_TYPE_URL, WAYPOINT_SERVICE_TYPE_URL,
    WAYPOINT_TELEMETRY_TYPE_URL,
};
use ambit_xds_core::{Kind, TypeConfig};

/// What the client is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// A node proxy: workloads, services, and the policies of layer 4.
    #[default]
    NodeProxy,
    /// A waypoint: workloads and services, and what concerns its Gateway.
    Waypoint,
}

/// A type of resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Workloads and services (WDS).
    Address,
    /// Policies of layer 4.
    Policy,
    /// The settings of a waypoint.
    WaypointGateway,
    /// The services that a waypoint serves.
    WaypointService,
    /// The policies of a waypoint.
    WaypointPolicy,
    /// How a waypoint treats the endpoints of services.
    WaypointDestination,
    /// Who requests to a waypoint come from, by JSON web tokens.
    WaypointAuthentication,
    /// How many requests a waypoint lets pass.
    WaypointRateLimit,
    /// What a waypoint tells of requests.
    WaypointTelemetry,
    /// The plugins of a waypoint.
    WaypointExtension,
}

/// The place of [`Resource::Address`], the one type that is asked for on demand, for every role.
pub(crate) const ADDRESSES: Kind = 0;

impl Role {
    /// The first part of the client's name.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::NodeProxy => "ztunnel",
            Self::Waypoint => "waypoint",
        }
    }

    fn resources(self) -> &'static [Resource] {
        match self {
            Self::NodeProxy => &[Resource::Address, Resource::Policy],
            Self::Waypoint => &[
                Resource::Address,
                Resource::WaypointGateway,
                Resource::WaypointService,
                Resource::WaypointPolicy,
                Resource::WaypointDestination,
                Resource::WaypointAuthentication,
                Resource::WaypointRateLimit,
                Resource::WaypointTelemetry,
                Resource::WaypointExtension,
            ],
        }
    }

    /// The URLs of the types that a client follows.
    pub fn type_urls(self) -> impl Iterator<Item = &'static str> {
        self.resources().iter().map(|resource| resource.type_url())
    }

    /// The types that a client follows, in the order of their [`Kind`].
    pub(crate) fn types(self, on_demand: bool) -> Vec<TypeConfig> {
        let resources = self.resources().iter();
        let config = |resource: &Resource| TypeConfig {
            type_url: resource.type_url().into(),
            on_demand: on_demand && *resource == Resource::Address,
        };
        resources.map(config).collect()
    }

    /// The type of a [`Kind`].
    pub(crate) fn resource(self, kind: Kind) -> Option<Resource> {
        self.resources().get(kind).copied()
    }
}

impl Resource {
    /// Its URL.
    pub fn type_url(self) -> &'static str {
        match self {
            Self::Address => ADDRESS_TYPE_URL,
            Self::Policy => AUTHORIZATION_TYPE_URL,
            Self::WaypointGateway => WAYPOINT_GATEWAY_TYPE_URL,
            Self::WaypointService => WAYPOINT_SERVICE_TYPE_URL,
            Self::WaypointPolicy => WAYPOINT_POLICY_TYPE_URL,
            Self::WaypointDestination => WAYPOINT_DESTINATION_TYPE_URL,
            Self::WaypointAuthentication => WAYPOINT_AUTHENTICATION_TYPE_URL,
            Self::WaypointRateLimit => WAYPOINT_RATE_LIMIT_TYPE_URL,
            Self::WaypointTelemetry => WAYPOINT_TELEMETRY_TYPE_URL,
            Self::WaypointExtension => WAYPOINT_PLUGIN_TYPE_URL,
        }
    }
}
