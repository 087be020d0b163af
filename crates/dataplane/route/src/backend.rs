//! Routes requests that a waypoint forwards: to an endpoint of a service, or to a pod. The counterpart of
//! [`crate::outbound`], which routes for clients' node proxies.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use ambit_model::{ArcStr, GatewayAddress, NamespacedHostname, Service, Workload};
use rand::RngCore;

use crate::{
    MeshTable, Route, RouteError, WorkloadRef,
    balance::{ClientLocation, EndpointPurpose, select_ip},
    gateway::service_waypoint,
    outbound::{route_direct, tunnel_to_waypoint},
};

/// Request that a waypoint forwards, with the inputs for choosing an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct BackendRequest<'a> {
    /// Workload of the waypoint pod itself.
    pub waypoint: &'a Workload,
    /// Address by which clients address this waypoint. With `None`, a request may be routed through this waypoint
    /// again, like that of any client.
    pub own_address: Option<&'a GatewayAddress>,
    /// Whether the client addressed this service itself, and no HTTPRoute forwarded the request here. The waypoint
    /// then chooses an endpoint even if the service has another waypoint.
    pub is_called_service: bool,
    /// Uids of workloads at which earlier attempts of the same request failed, and which are excluded.
    pub failed_workloads: &'a [ArcStr],
    /// Address that the client dialed: an endpoint address of the same family is used if the endpoint and the service
    /// have one.
    pub dialed_ip: Option<IpAddr>,
}

/// Endpoint of a service from which a waypoint may choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendEndpoint {
    /// Workload of the endpoint.
    pub workload: WorkloadRef,
    /// Target port of the endpoint.
    pub port: u16,
    /// Weight of the endpoint.
    pub weight: u32,
    /// Locality rank of the endpoint by the service's load balancing preference; higher is better.
    pub rank: u32,
}

/// Returns the number of active requests at an address.
pub type ActiveRequestsAt<'a> = &'a dyn Fn(SocketAddr) -> usize;

impl BackendRequest<'_> {
    fn client_location(&self) -> ClientLocation<'_> {
        ClientLocation {
            failed_workloads: self.failed_workloads,
            ..self.waypoint.into()
        }
    }

    /// Returns the address at which to call an endpoint: of a family that the service has, preferably the one that
    /// the client dialed.
    fn endpoint_ip(
        &self,
        workload: &WorkloadRef,
        service: Option<&Arc<Service>>,
    ) -> Option<IpAddr> {
        let families = service.and_then(|service| service.ip_families);
        let offered = |ip: &&IpAddr| families.is_none_or(|families| families.accepts(**ip));
        let first = || workload.ips().iter().find(offered).copied();
        select_ip(workload, self.dialed_ip.or_else(first)?, families)
    }

    fn is_own_address(&self, gateway: &GatewayAddress) -> bool {
        self.own_address
            .is_some_and(|own| gateway.destination == own.destination)
    }
}

impl MeshTable {
    /// Routes a waypoint's request to an endpoint of a service. With `load`, picks of two random endpoints the one
    /// with fewer active requests.
    ///
    /// # Errors
    ///
    /// When there is no such service or port, no usable endpoint, or the endpoint must be entered through a waypoint
    /// that is not found.
    pub fn route_to_backend(
        &self,
        request: &BackendRequest<'_>,
        name: &NamespacedHostname,
        port: u16,
        load: Option<ActiveRequestsAt<'_>>,
        rng: &mut dyn RngCore,
    ) -> Result<Route, RouteError> {
        let none = || RouteError::NoHealthyUpstream {
            service: name.clone(),
            port,
        };
        let (service, endpoints) = self.services.by_name(name).ok_or_else(none)?;
        let through = service_waypoint(service, rng);
        if let Some(gateway) =
            through.filter(|gateway| !request.is_called_service && !request.is_own_address(gateway))
        {
            return self.route_through_waypoint(request, service, port, gateway, rng);
        }
        let client_location = request.client_location();
        let draw = |rng: &mut dyn RngCore| {
            self.choose_endpoint(
                client_location,
                service,
                endpoints,
                port,
                EndpointPurpose::ClientConnection,
                rng,
            )
        };
        let mut drawn = draw(rng).ok_or_else(none)?;
        if let (Some(load), Some(second)) = (load, load.and_then(|_| draw(rng))) {
            let load = |(workload, port): (&WorkloadRef, u16)| {
                let ip = request.endpoint_ip(workload, Some(service));
                ip.map_or(0, |ip| load(SocketAddr::new(ip, port)))
            };
            if load(second) < load(drawn) {
                drawn = second;
            }
        }
        let (workload, target) = drawn;
        self.route_to_chosen_endpoint(request, workload, target, Some(service), rng)
    }

    /// Revision of a service's endpoints, which changes with any of them. `None` if the waypoint does not choose among
    /// them: the service does not exist, or its own waypoint chooses.
    pub fn backend_revision(
        &self,
        request: &BackendRequest<'_>,
        name: &NamespacedHostname,
        rng: &mut dyn RngCore,
    ) -> Option<u64> {
        let (service, endpoints) = self.services.by_name(name)?;
        let is_own = request.is_called_service
            || service_waypoint(service, rng).is_none_or(|gateway| request.is_own_address(gateway));
        is_own.then_some(endpoints.revision)
    }

    /// Returns the endpoints of a service from which a waypoint may choose.
    pub fn backend_endpoints(
        &self,
        request: &BackendRequest<'_>,
        name: &NamespacedHostname,
        port: u16,
    ) -> Vec<BackendEndpoint> {
        let Some((service, endpoints)) = self.services.by_name(name) else {
            return Vec::new();
        };
        let usable = self.eligible_endpoints(request.client_location(), service, endpoints, port);
        let all = usable
            .into_iter()
            .map(|(workload, port, rank)| BackendEndpoint {
                workload: workload.clone(),
                port,
                weight: workload.template().capacity,
                rank: u32::try_from(rank).unwrap_or(u32::MAX),
            });
        all.collect()
    }

    /// Routes to an endpoint that the waypoint has chosen.
    ///
    /// # Errors
    ///
    /// When the endpoint has no address, or must be entered through a waypoint that is not found.
    pub fn route_to_endpoint(
        &self,
        request: &BackendRequest<'_>,
        name: &NamespacedHostname,
        endpoint: &BackendEndpoint,
        rng: &mut dyn RngCore,
    ) -> Result<Route, RouteError> {
        let service = self.service(name);
        self.route_to_chosen_endpoint(request, &endpoint.workload, endpoint.port, service, rng)
    }

    /// Routes to a pod that the client addressed by IP.
    ///
    /// # Errors
    ///
    /// When the pod has no address, or must be entered through a waypoint that is not found.
    pub fn route_to_pod(
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
        route_direct(workload, dst.ip(), dst.port(), None)
    }

    /// Routes through the waypoint of a backend's service; that waypoint chooses the endpoint.
    fn route_through_waypoint(
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
        let vips = || {
            let all = service.vips.iter();
            all.filter(|vip| vip.network == request.waypoint.network)
        };
        let is_preferred = |ip: IpAddr| {
            request
                .dialed_ip
                .is_none_or(|dialled| dialled.is_ipv6() == ip.is_ipv6())
        };
        let vip = vips()
            .find(|vip| is_preferred(vip.address))
            .or_else(|| vips().next())
            .ok_or_else(|| RouteError::NoHealthyUpstream {
                service: service.namespaced_hostname(),
                port,
            })?;
        let found = self
            .find_gateway(request.client_location(), gateway, vip.address, rng)
            .filter(|found| *found.workload.network() == request.waypoint.network)
            .ok_or_else(unknown)?;
        let target = SocketAddr::new(vip.address, port);
        Ok(tunnel_to_waypoint(&found, gateway, target, Some(service)))
    }

    /// Routes to an endpoint that the waypoint has chosen. If the endpoint has another waypoint, the route is a
    /// tunnel to that one for the endpoint's address, so that two waypoints never loop a request.
    fn route_to_chosen_endpoint(
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
        let other = attached.filter(|attached| !request.is_own_address(&attached.waypoint));
        let dialled = request.endpoint_ip(workload, service);
        let Some(attached) = other else {
            let dialled = dialled.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
            return route_direct(workload, dialled, port, service);
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
