//! The peer of a connection to an upstream: the endpoint itself, or a waypoint in front of it.

use std::net::SocketAddr;

use ambit_model::NamespacedHostname;
use ambit_route::{HboneRoute, Route, WorkloadRef};

use super::error::UpstreamError;
use crate::applied_services::AppliedServices;

/// The host that a connection goes to: an endpoint, or a waypoint in front of it.
#[derive(Clone, Debug)]
pub(crate) enum Upstream {
    /// Plaintext TCP; the workload, if the address is one of the mesh's records.
    Plain(SocketAddr, Option<WorkloadRef>),
    /// HBONE tunnel to the endpoint or to its waypoint.
    Tunnel(Box<HboneRoute>),
}

impl Upstream {
    /// Services whose attachments have been applied to a request to `called`, for the waypoint that is next; none unless
    /// a waypoint is next.
    pub(crate) fn applied_services(&self, called: Option<&NamespacedHostname>) -> AppliedServices {
        let Self::Tunnel(route) = self else {
            return AppliedServices::default();
        };
        if !self.is_waypoint() {
            return AppliedServices::default();
        }
        let chosen = route.service.as_ref();
        let chosen = chosen.map(|service| service.namespaced_hostname());
        AppliedServices::naming(called.cloned().into_iter().chain(chosen))
    }

    /// Returns the upstream of a route that needs no DNS.
    pub(crate) fn known(route: Route) -> Result<Self, UpstreamError> {
        match route {
            Route::Plain(plain) => Ok(Self::Plain(plain.addr, Some(plain.workload))),
            Route::Hbone(hbone) => Ok(Self::Tunnel(Box::new(hbone))),
            Route::Passthrough { dst, .. } => Ok(Self::Plain(dst, None)),
            Route::DoubleHbone { .. } | Route::NeedsDns(_) => Err(UpstreamError::OtherNetwork),
        }
    }

    /// The address that is connected to: the endpoint's, or that of a waypoint before it.
    pub(crate) fn next_hop(&self) -> SocketAddr {
        match self {
            Self::Plain(address, _) => *address,
            Self::Tunnel(route) => route.addr,
        }
    }

    /// Returns the endpoint's address, for reports and for avoiding it after a failure.
    pub(crate) fn endpoint(&self) -> SocketAddr {
        match self {
            Self::Plain(address, _) => *address,
            Self::Tunnel(route) => route.authority.parse().unwrap_or(route.addr),
        }
    }

    /// Whether a waypoint is at the other end, and not the endpoint.
    pub(crate) fn is_waypoint(&self) -> bool {
        matches!(self, Self::Tunnel(route) if route.waypoint.is_some())
    }

    /// The workload at the other end: the endpoint, or a waypoint before it.
    pub(crate) fn workload(&self) -> Option<&WorkloadRef> {
        match self {
            Self::Plain(_, workload) => workload.as_ref(),
            Self::Tunnel(route) => Some(&route.workload),
        }
    }
}
