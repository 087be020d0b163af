//! Next hop of a connection to an upstream: the endpoint itself, or a waypoint in front of it.

use std::net::SocketAddr;

use ambit_model::NamespacedHostname;
use ambit_route::{HboneRoute, Route, WorkloadRef};

use super::error::UpstreamError;
use crate::applied_services::AppliedServices;

/// Next hop of a connection: an endpoint, or a waypoint in front of it.
#[derive(Clone, Debug)]
pub(crate) enum Upstream {
    /// Endpoint reached by plaintext TCP; with the workload if the mesh has a record of the address.
    Plain(SocketAddr, Option<WorkloadRef>),
    /// Endpoint or its waypoint, reached through an HBONE tunnel.
    Tunnel(Box<HboneRoute>),
}

impl Upstream {
    /// Returns the services to name in the CONNECT to a next waypoint, since their attachments have been applied:
    /// `called` and the route's backend. Empty if the next hop is not a waypoint.
    pub(crate) fn applied_services(&self, called: Option<&NamespacedHostname>) -> AppliedServices {
        let Self::Tunnel(route) = self else {
            return AppliedServices::default();
        };
        if !self.is_waypoint() {
            return AppliedServices::default();
        }
        let chosen = route.service.as_ref();
        let chosen = chosen.map(|service| service.namespaced_hostname());
        AppliedServices::from_services(called.cloned().into_iter().chain(chosen))
    }

    /// Returns the upstream of a route that needs no DNS.
    pub(crate) fn from_route(route: Route) -> Result<Self, UpstreamError> {
        match route {
            Route::Plain(plain) => Ok(Self::Plain(plain.addr, Some(plain.workload))),
            Route::Hbone(hbone) => Ok(Self::Tunnel(Box::new(hbone))),
            Route::Passthrough { dst, .. } => Ok(Self::Plain(dst, None)),
            Route::DoubleHbone { .. } | Route::NeedsDns(_) => Err(UpstreamError::OtherNetwork),
        }
    }

    /// Returns the address to connect to: the endpoint's, or that of a waypoint in front of it.
    pub(crate) fn next_hop(&self) -> SocketAddr {
        match self {
            Self::Plain(address, _) => *address,
            Self::Tunnel(route) => route.addr,
        }
    }

    /// Returns the endpoint's address, for telemetry and to exclude the endpoint after a failure.
    pub(crate) fn endpoint(&self) -> SocketAddr {
        match self {
            Self::Plain(address, _) => *address,
            Self::Tunnel(route) => route.authority.parse().unwrap_or(route.addr),
        }
    }

    /// Whether the next hop is a waypoint rather than the endpoint.
    pub(crate) fn is_waypoint(&self) -> bool {
        matches!(self, Self::Tunnel(route) if route.waypoint.is_some())
    }

    /// Returns the workload of the next hop: the endpoint, or a waypoint in front of it.
    pub(crate) fn workload(&self) -> Option<&WorkloadRef> {
        match self {
            Self::Plain(_, workload) => workload.as_ref(),
            Self::Tunnel(route) => Some(&route.workload),
        }
    }
}
