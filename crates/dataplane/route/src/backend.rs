//! Where a waypoint sends a request: to an endpoint of a service, or to a pod. The counterpart of what a client's
//! proxy decides in [`crate::outbound`].

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use ambit_model::{ArcStr, GatewayAddress, NamespacedHostname, Service, Workload};
use rand::RngCore;

use crate::{
    MeshTable, Route, RouteError, WorkloadRef,
    balance::{Mode, Vantage},
    gateway::service_waypoint,
    outbound::{direct, tunnel_to_waypoint},
};

/// What a waypoint looks for.
#[derive(Clone, Copy, Debug)]
pub struct BackendRequest<'a> {
    /// The waypoint's own workload.
    pub waypoint: &'a Workload,
    /// How clients name the waypoint.
    pub own: &'a GatewayAddress,
    /// Whether it came for this very service, rather than by a route that leads to it: then the choice is
    /// among its endpoints, and not left to the service's own waypoint.
    pub is_target: bool,
    /// Uids of workloads that are not to be chosen: they were tried for the same request.
    pub failed: &'a [ArcStr],
}

impl BackendRequest<'_> {
    fn vantage(&self) -> Vantage<'_> {
        Vantage {
            failed: self.failed,
            ..self.waypoint.into()
        }
    }

    fn is_own(&self, gateway: &GatewayAddress) -> bool {
        gateway.destination == self.own.destination
    }
}

impl MeshTable {
    /// A way to an endpoint of a service, for a waypoint.
    ///
    /// # Errors
    /// When there is no such service or port, no usable endpoint, or one that must be entered through a
    /// waypoint that cannot be found.
    pub fn backend(
        &self,
        request: &BackendRequest<'_>,
        name: &NamespacedHostname,
        port: u16,
        rng: &mut dyn RngCore,
    ) -> Result<Route, RouteError> {
        let none = || RouteError::NoHealthyUpstream {
            service: name.clone(),
            port,
        };
        let (service, endpoints) = self.services.by_name(name).ok_or_else(none)?;
        let through = service_waypoint(service, rng);
        if let Some(gateway) =
            through.filter(|gateway| !request.is_target && !request.is_own(gateway))
        {
            return self.through_waypoint_of(request, service, port, gateway, rng);
        }
        let (workload, target) = self
            .balance(
                request.vantage(),
                service,
                endpoints,
                port,
                Mode::Standard,
                rng,
            )
            .ok_or_else(none)?;
        self.to_backend(request, workload, target, Some(service), rng)
    }

    /// The way to a pod that the waypoint was asked for by its address.
    ///
    /// # Errors
    /// When it has no address, or must be entered through a waypoint that cannot be found.
    pub fn backend_pod(
        &self,
        request: &BackendRequest<'_>,
        workload: &WorkloadRef,
        dst: SocketAddr,
    ) -> Result<Route, RouteError> {
        if request.waypoint.network != *workload.network() {
            return Err(RouteError::NoDestination {
                workload: workload.uid().clone(),
            });
        }
        direct(workload, dst.ip(), dst.port(), None)
    }

    /// To the waypoint that a backend's service is bound to, with the service as target.
    fn through_waypoint_of(
        &self,
        request: &BackendRequest<'_>,
        service: &Arc<Service>,
        port: u16,
        gateway: &GatewayAddress,
        rng: &mut dyn RngCore,
    ) -> Result<Route, RouteError> {
        let unknown = || RouteError::UnknownWaypoint {
            waypoint: gateway.destination.to_string(),
            of: service.namespaced_hostname().to_string(),
        };
        let vip = service
            .vips
            .iter()
            .find(|vip| vip.network == request.waypoint.network)
            .ok_or_else(|| RouteError::NoHealthyUpstream {
                service: service.namespaced_hostname(),
                port,
            })?;
        let found = self
            .find_gateway(request.vantage(), gateway, vip.address, rng)
            .filter(|found| *found.workload.network() == request.waypoint.network)
            .ok_or_else(unknown)?;
        let target = SocketAddr::new(vip.address, port);
        Ok(tunnel_to_waypoint(&found, gateway, target, Some(service)))
    }

    /// To a chosen endpoint: through its own waypoint if that is another, with the endpoint as target, so that
    /// two waypoints never send a request back and forth.
    fn to_backend(
        &self,
        request: &BackendRequest<'_>,
        workload: &WorkloadRef,
        port: u16,
        service: Option<&Arc<Service>>,
        rng: &mut dyn RngCore,
    ) -> Result<Route, RouteError> {
        let missing = || RouteError::NoDestination {
            workload: workload.uid().clone(),
        };
        if request.waypoint.network != *workload.network() {
            return Err(missing());
        }
        let attached = workload.template().endpoint_waypoint.as_deref();
        let other = attached.filter(|attached| !request.is_own(&attached.waypoint));
        let dialled = workload.ips().first().copied();
        let Some(attached) = other else {
            let dialled = dialled.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
            return direct(workload, dialled, port, service);
        };
        let target = SocketAddr::new(dialled.ok_or_else(missing)?, port);
        let found = self
            .find_gateway(request.waypoint.into(), attached, target.ip(), rng)
            .filter(|found| *found.workload.network() == request.waypoint.network)
            .ok_or_else(|| RouteError::UnknownWaypoint {
                waypoint: attached.waypoint.destination.to_string(),
                of: workload.uid().to_string(),
            })?;
        Ok(tunnel_to_waypoint(
            &found,
            &attached.waypoint,
            target,
            service,
        ))
    }
}
