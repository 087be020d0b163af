//! Resolves a waypoint or a network gateway to one of its workloads.

use std::{net::IpAddr, sync::Arc};

use ambit_model::{
    ArcStr, EndpointWaypoint, GatewayAddress, GatewayDestination, HBONE_PORT, Identity,
    NetworkAddress, Service, Workload,
};
use rand::{Rng, RngCore};

use crate::{
    MeshTable, WorkloadRef,
    balance::{ClientLocation, EndpointPurpose, is_candidate, select_ip},
    identities::{Identities, server_identities},
    services::Endpoints,
};

/// Client namespace for lookups that find only public services, since no namespace has this name.
const NO_CLIENT_NAMESPACE: &str = "";

/// Address of a waypoint or network gateway, as a workload's or service's record names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamedGateway<'a> {
    /// Address of the gateway.
    pub(crate) gateway: &'a GatewayAddress,
    /// Identities of the gateway's pods, if the record names them.
    pub(crate) pod_identities: Option<&'a [Identity]>,
}

impl<'a> From<&'a GatewayAddress> for NamedGateway<'a> {
    fn from(gateway: &'a GatewayAddress) -> Self {
        Self {
            gateway,
            pod_identities: None,
        }
    }
}

impl<'a> From<&'a EndpointWaypoint> for NamedGateway<'a> {
    fn from(attached: &'a EndpointWaypoint) -> Self {
        Self {
            gateway: &attached.waypoint,
            pod_identities: Some(&attached.identities),
        }
    }
}

/// Workload that was chosen to serve a waypoint or network gateway.
#[derive(Debug)]
pub(crate) struct GatewayWorkload<'a> {
    pub(crate) workload: &'a WorkloadRef,
    /// Address of the workload; `None` if its host name must be resolved.
    pub(crate) ip: Option<IpAddr>,
    /// HBONE port of the workload.
    pub(crate) port: u16,
    /// Service to which the gateway's address refers; `None` if it refers to a workload.
    pub(crate) service: Option<&'a Arc<Service>>,
    /// Whether the peer must present exactly this workload's identity.
    requires_exact_identity: bool,
}

impl GatewayWorkload<'_> {
    /// Returns the identities that the peer may present: the workload's own and, unless the record names the
    /// identities of the gateway's pods, those of its service.
    pub(crate) fn identities(&self) -> Identities {
        let service = self.service.filter(|_| !self.requires_exact_identity);
        server_identities(Some(self.workload), service.map(|service| &**service))
    }
}

/// Returns the waypoint of a service for one connection. If the service has several waypoints with weights, the choice
/// is random by weight.
pub(crate) fn service_waypoint<'a>(
    service: &'a Service,
    rng: &mut dyn RngCore,
) -> Option<&'a GatewayAddress> {
    let total: u64 = service
        .weighted_waypoints
        .iter()
        .map(|w| u64::from(w.weight))
        .sum();
    if total == 0 {
        return service.waypoint.as_ref();
    }
    let mut drawn = rng.random_range(0..total);
    for waypoint in &service.weighted_waypoints {
        let weight = u64::from(waypoint.weight);
        if drawn < weight {
            return Some(&waypoint.destination);
        }
        drawn -= weight;
    }
    service.waypoint.as_ref()
}

impl MeshTable {
    /// Chooses a workload of a gateway. `dialled`, the address that the client dialed, selects only the address
    /// family.
    pub(crate) fn find_gateway<'a>(
        &self,
        client_location: ClientLocation<'_>,
        named: impl Into<NamedGateway<'a>>,
        dialled: IpAddr,
        rng: &mut dyn RngCore,
    ) -> Option<GatewayWorkload<'_>> {
        let NamedGateway {
            gateway,
            pod_identities: run_as,
        } = named.into();
        let port = match gateway.hbone_mtls_port {
            0 => HBONE_PORT,
            port => port,
        };
        let mode = EndpointPurpose::WaypointTunnel(run_as);
        let by_service = match &gateway.destination {
            GatewayDestination::Address(at) => self.gateway_service(at),
            GatewayDestination::Hostname(name) => self.services.by_name(name),
        };
        let (workload, ip, port, service) = if let Some((service, endpoints)) = by_service {
            let (workload, port) =
                self.choose_endpoint(client_location, service, endpoints, port, mode, rng)?;
            let ip = select_ip(workload, dialled, service.ip_families);
            (workload, ip, port, Some(service))
        } else {
            let (workload, ip) = match &gateway.destination {
                GatewayDestination::Address(at) => (
                    self.workloads.by_ip(&at.network, at.address)?,
                    Some(at.address),
                ),
                GatewayDestination::Hostname(name) => {
                    let workload = self.workloads.by_hostname(name)?;
                    (workload, select_ip(workload, dialled, None))
                }
            };
            (workload, ip, port, None)
        };
        let found = GatewayWorkload {
            workload,
            ip,
            port,
            service,
            requires_exact_identity: run_as.is_some(),
        };
        found
            .if_reachable(client_location)
            .filter(|_| is_candidate(workload, client_location, mode))
    }

    /// Whether the service that a gateway's address refers to is known, even if it has no endpoints.
    pub(crate) fn is_gateway_known(&self, gateway: &GatewayAddress) -> bool {
        match &gateway.destination {
            GatewayDestination::Address(at) => self.gateway_service(at).is_some(),
            GatewayDestination::Hostname(name) => self.services.by_name(name).is_some(),
        }
    }

    /// Whether `source` is a pod of a destination's waypoint: an endpoint of the waypoint's service that runs under
    /// one of the identities that the record names, if it names any. Connections from the waypoint to its own
    /// destinations must not be routed to a waypoint again. A pod that only runs under the waypoint's service account
    /// is not the waypoint.
    pub(crate) fn is_waypoint_pod<'a>(
        &self,
        source: &Workload,
        named: impl Into<NamedGateway<'a>>,
    ) -> bool {
        let NamedGateway {
            gateway,
            pod_identities: run_as,
        } = named.into();
        let runs_as_named = run_as.is_none_or(|run_as| run_as.contains(&source.identity()));
        runs_as_named && self.is_gateway_workload(source, gateway)
    }

    /// Returns the service at a gateway's address. Only public services count, since a namespace could otherwise
    /// substitute its own pods for the gateway.
    fn gateway_service(&self, at: &NetworkAddress) -> Option<(&Arc<Service>, &Endpoints)> {
        self.services
            .by_vip(&at.network, at.address, Some(NO_CLIENT_NAMESPACE))
    }

    /// Whether `source` is an endpoint of the gateway's service, or the workload at its address.
    pub(crate) fn is_gateway_workload(&self, source: &Workload, gateway: &GatewayAddress) -> bool {
        let service = match &gateway.destination {
            GatewayDestination::Address(at) => self.gateway_service(at).map(|(service, _)| service),
            GatewayDestination::Hostname(name) => self.service(name),
        };
        if let Some(service) = service {
            return source.services.contains_key(&service.namespaced_hostname());
        }
        match &gateway.destination {
            GatewayDestination::Address(at) => {
                source.network == at.network && source.workload_ips.contains(&at.address)
            }
            GatewayDestination::Hostname(name) => {
                source.namespace == name.namespace && source.hostname == name.hostname
            }
        }
    }
}

impl<'a> GatewayWorkload<'a> {
    fn if_reachable(self, client_location: ClientLocation<'_>) -> Option<Self> {
        let template = self.workload.template();
        let reachable = self.ip.is_some()
            || !template.hostname.is_empty()
            || (template.network != *client_location.network && template.network_gateway.is_some());
        reachable.then_some(self)
    }

    pub(crate) fn hostname(&self) -> &'a ArcStr {
        &self.workload.template().hostname
    }
}
