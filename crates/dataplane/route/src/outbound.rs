//! Routes a captured pod's outbound connection, in the order of decisions of Istio's ztunnel.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use ambit_model::{
    ArcStr, EndpointWaypoint, FailureReason, GatewayAddress, GatewayDestination, HBONE_PORT,
    LbMode, NamespacedHostname, Protocol, Service, Workload,
};
use rand::RngCore;

use crate::{
    MeshTable, WorkloadRef,
    balance::{ClientLocation, EndpointPurpose, select_ip},
    gateway::{GatewayWorkload, NamedGateway, service_waypoint},
    identities::{Identities, server_identities},
};

/// Route of an outbound connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// Plain TCP to the original destination, which is not in the mesh.
    Passthrough {
        /// Original destination address.
        dst: SocketAddr,
        /// Service that the client dialed, if its load balancing mode is passthrough.
        service: Option<Arc<Service>>,
    },
    /// Plain TCP to a workload that does not support tunnels.
    Plain(PlainRoute),
    /// Single HBONE tunnel to the destination or its waypoint.
    Hbone(HboneRoute),
    /// A tunnel within a tunnel, through the gateway of another network.
    DoubleHbone {
        /// Tunnel to the network gateway.
        outer: HboneRoute,
        /// Inner tunnel to the endpoint in the other network.
        inner: InnerTunnel,
    },
    /// Route to a destination that has only a host name, which the caller must resolve and pass to
    /// [`PendingRoute::resolve`].
    NeedsDns(PendingRoute),
}

/// Destination of [`Route::Plain`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainRoute {
    /// Address to connect to.
    pub addr: SocketAddr,
    /// Workload of the destination.
    pub workload: WorkloadRef,
    /// Service that the client dialed, if any.
    pub service: Option<Arc<Service>>,
}

/// Destination of [`Route::Hbone`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HboneRoute {
    /// Address of the tunnel's peer.
    pub addr: SocketAddr,
    /// `:authority` of the CONNECT request.
    pub authority: String,
    /// Identities that the tunnel's server may present.
    pub expected_identities: Identities,
    /// Workload at which this tunnel ends: the destination, the waypoint or the gateway.
    pub workload: WorkloadRef,
    /// Service that the client dialed, if any; used for `host` of the `forwarded` header and for telemetry.
    pub service: Option<Arc<Service>>,
    /// Name of the waypoint at which the tunnel ends, as in the record; `None` if it ends at the destination.
    pub waypoint: Option<ArcStr>,
}

/// The inner tunnel of [`Route::DoubleHbone`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InnerTunnel {
    /// `:authority` of the inner CONNECT request.
    pub authority: String,
    /// Identities that the inner tunnel's server may present.
    pub expected_identities: Identities,
}

/// Route to a workload whose host name must be resolved first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingRoute {
    /// The host name to resolve.
    pub hostname: ArcStr,
    /// Whether to prefer IPv6 addresses, since the client dialed one; otherwise IPv4 is preferred. The other family
    /// is acceptable.
    pub prefer_ipv6: bool,
    /// Complete route except for the destination address, which is a placeholder.
    route: Box<Route>,
    /// Whether the CONNECT request's authority is the address, too, and must be filled in.
    authority_is_addr: bool,
}

impl PendingRoute {
    /// Returns the route with the address to which the host name resolved.
    pub fn resolve(self, ip: IpAddr) -> Route {
        let Self {
            mut route,
            authority_is_addr,
            ..
        } = self;
        let ip = ip.to_canonical();
        match &mut *route {
            Route::Plain(plain) => plain.addr.set_ip(ip),
            Route::Hbone(hbone) => {
                if authority_is_addr && let Ok(mut target) = hbone.authority.parse::<SocketAddr>() {
                    target.set_ip(ip);
                    hbone.authority = target.to_string();
                }
                hbone.addr.set_ip(ip);
            }
            Route::DoubleHbone { outer, .. } => outer.addr.set_ip(ip),
            Route::Passthrough { .. } | Route::NeedsDns(_) => {}
        }
        *route
    }

    /// Returns the workload whose host name is to be resolved, for the on-demand DNS metric.
    pub fn workload(&self) -> Option<&WorkloadRef> {
        self.route.workload()
    }
}

impl Route {
    /// Returns the workload at the other end of the (outer) connection.
    pub fn workload(&self) -> Option<&WorkloadRef> {
        match self {
            Self::Passthrough { .. } => None,
            Self::Plain(plain) => Some(&plain.workload),
            Self::Hbone(hbone) | Self::DoubleHbone { outer: hbone, .. } => Some(&hbone.workload),
            Self::NeedsDns(pending) => pending.workload(),
        }
    }

    /// Returns the service that the client dialed.
    pub fn service(&self) -> Option<&Arc<Service>> {
        match self {
            Self::Passthrough { service, .. } => service.as_ref(),
            Self::Plain(plain) => plain.service.as_ref(),
            Self::Hbone(hbone) | Self::DoubleHbone { outer: hbone, .. } => hbone.service.as_ref(),
            Self::NeedsDns(pending) => pending.route.service(),
        }
    }
}

/// Reason why an outbound connection has no route. The connection then fails, whatever the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// The service has no usable endpoint.
    #[error("no healthy upstream: {service} port {port}")]
    NoHealthyUpstream {
        /// Service that the client dialed.
        service: NamespacedHostname,
        /// Port that the client dialed.
        port: u16,
    },
    /// A record names a waypoint that is not known, or has no known endpoint.
    #[error("unknown waypoint: {waypoint} of {of}")]
    UnknownWaypoint {
        /// Name of the waypoint (`network/ip` or `namespace/hostname`).
        waypoint: String,
        /// Workload or service that names the waypoint.
        of: String,
    },
    /// The waypoint exists, but has no usable pod.
    #[error("no pod of the waypoint {waypoint} of {of} serves")]
    NoWaypointPod {
        /// Name of the waypoint (`network/ip` or `namespace/hostname`).
        waypoint: String,
        /// Workload or service that names the waypoint.
        of: String,
    },
    /// A record names a gateway to another network that is not known.
    #[error("unknown network gateway: {gateway} of {of}")]
    UnknownGateway {
        /// Name of the gateway (`network/ip` or `namespace/hostname`).
        gateway: String,
        /// Workload or service that is reached through the gateway.
        of: String,
    },
    /// The workload has neither address nor host name, or is on another network without a gateway.
    #[error("no valid routing destination for workload: {workload}")]
    NoDestination {
        /// Uid of the workload.
        workload: ArcStr,
    },
    /// The destination must be reached through its waypoint, to which connections cannot be redirected.
    #[error(
        "{of} is reached through its waypoint {waypoint} alone, which cannot receive the original peer of this connection: refused"
    )]
    BypassesWaypoint {
        /// Address of the waypoint.
        waypoint: String,
        /// Uid of the destination workload.
        of: ArcStr,
    },
    /// The control plane did not respond to the on-demand subscription for the destination.
    #[error("the control plane did not answer about {key} in time")]
    ControlPlaneTimeout {
        /// Resource name to which the client subscribed.
        key: String,
    },
    /// The service has endpoints behind a network gateway but names no identities, so no server of the inner tunnel
    /// could be accepted.
    #[error("no identities are known for {service} on the other network: refusing to tunnel")]
    NoIdentities {
        /// Service that the client dialed.
        service: NamespacedHostname,
    },
}

impl RouteError {
    /// Returns the response flag for metrics and the access log.
    pub fn reason(&self) -> FailureReason {
        FailureReason::Connect
    }

    /// Whether the error is transient, so that a retry within seconds may succeed: the waypoint exists, but has no
    /// ready pod yet.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::NoWaypointPod { .. })
    }

    /// Returns the name of the missing record, which an on-demand client may request from the control plane.
    pub fn missing_record(&self) -> Option<&str> {
        match self {
            Self::UnknownWaypoint { waypoint: key, .. }
            | Self::NoWaypointPod { waypoint: key, .. }
            | Self::UnknownGateway { gateway: key, .. } => Some(key),
            _ => None,
        }
    }
}

impl MeshTable {
    /// Routes a connection of the local workload `source` to `dst`.
    ///
    /// The order is that of Istio's ztunnel: the waypoint of the dialed service; else an endpoint of the service, or
    /// the dialed workload; then that endpoint's waypoint; then the endpoint itself. A waypoint or gateway that a
    /// record names but that cannot be found is an error, never bypassed.
    pub fn outbound(
        &self,
        source: &Workload,
        dst: SocketAddr,
        rng: &mut dyn RngCore,
    ) -> Result<Route, RouteError> {
        self.outbound_excluding(source, dst, &[], rng)
    }

    /// Routes like [`Self::outbound`], but excludes the workloads with the uids `failed`, to which connections have
    /// failed: another pod of the waypoint or another endpoint of the service is chosen.
    pub fn outbound_excluding(
        &self,
        source: &Workload,
        dst: SocketAddr,
        failed: &[ArcStr],
        rng: &mut dyn RngCore,
    ) -> Result<Route, RouteError> {
        let caller = RouteClient {
            source,
            failed_workloads: failed,
        };
        let dst = ambit_model::canonical_socket_address(dst);
        let at = self.service_at(&source.network, dst.ip(), &source.namespace);
        let Some((service, endpoints)) = at else {
            return match self.workloads.by_ip(&source.network, dst.ip()) {
                Some(workload) => self.route_to_workload(caller, dst, workload, rng),
                None => Ok(Route::Passthrough { dst, service: None }),
            };
        };
        if let Some(waypoint) = service_waypoint(service, rng) {
            return self.route_to_service_waypoint(caller, dst, service, waypoint, rng);
        }
        if service.lb_mode() == LbMode::Passthrough {
            // A workload keeps its mTLS and its waypoint.
            return match self.workloads.by_ip(&source.network, dst.ip()) {
                Some(workload) => self.route_to_workload(caller, dst, workload, rng),
                None => Ok(Route::Passthrough {
                    dst,
                    service: Some(service.clone()),
                }),
            };
        }
        let (workload, port) = self
            .choose_endpoint(
                caller.client_location(),
                service,
                endpoints,
                dst.port(),
                EndpointPurpose::ClientConnection,
                rng,
            )
            .ok_or_else(|| RouteError::NoHealthyUpstream {
                service: service.namespaced_hostname(),
                port: dst.port(),
            })?;
        if workload.network() != &source.network {
            let identities = server_identities(None, Some(service));
            return self.route_through_gateway(caller, dst, service, workload, identities, rng);
        }
        let Some(attached) = self.endpoint_waypoint(caller, workload) else {
            return route_direct(workload, dst.ip(), port, Some(service));
        };
        let target = if attached.for_services {
            dst
        } else {
            let ip = select_ip(workload, dst.ip(), service.ip_families);
            let ip = ip.ok_or_else(|| RouteError::NoDestination {
                workload: workload.uid().clone(),
            })?;
            SocketAddr::new(ip, port)
        };
        let (of, named) = (workload.uid(), NamedGateway::from(attached));
        self.route_to_waypoint(caller, target, named, of, Some(service), rng)
    }

    /// Routes to a workload that the client dialed by its own address.
    fn route_to_workload(
        &self,
        caller: RouteClient<'_>,
        dst: SocketAddr,
        workload: &WorkloadRef,
        rng: &mut dyn RngCore,
    ) -> Result<Route, RouteError> {
        let template = workload.template();
        let named = match &template.endpoint_waypoint {
            Some(_) => self
                .endpoint_waypoint(caller, workload)
                .map(NamedGateway::from),
            None => {
                let waypoint = template.waypoint.as_deref();
                waypoint
                    .filter(|waypoint| !self.is_waypoint_pod(caller.source, *waypoint))
                    .map(NamedGateway::from)
            }
        };
        match named {
            Some(named) => self.route_to_waypoint(caller, dst, named, workload.uid(), None, rng),
            None => route_direct(workload, dst.ip(), dst.port(), None),
        }
    }

    fn route_to_service_waypoint(
        &self,
        caller: RouteClient<'_>,
        dst: SocketAddr,
        service: &Arc<Service>,
        waypoint: &GatewayAddress,
        rng: &mut dyn RngCore,
    ) -> Result<Route, RouteError> {
        let found = self
            .find_gateway(caller.client_location(), waypoint, dst.ip(), rng)
            .ok_or_else(|| {
                self.waypoint_error(waypoint, service.namespaced_hostname().to_string())
            })?;
        if found.workload.network() != &caller.source.network {
            let identities = server_identities(None, found.service.map(|service| &**service));
            return self.route_through_gateway(
                caller,
                dst,
                service,
                found.workload,
                identities,
                rng,
            );
        }
        Ok(tunnel_to_waypoint(&found, waypoint, dst, Some(service)))
    }

    /// Returns the waypoint that an endpoint's own record names, unless the connection comes from that waypoint.
    fn endpoint_waypoint<'a>(
        &self,
        caller: RouteClient<'_>,
        workload: &'a WorkloadRef,
    ) -> Option<&'a EndpointWaypoint> {
        let attached = workload.template().endpoint_waypoint.as_deref();
        attached.filter(|attached| !self.is_waypoint_pod(caller.source, *attached))
    }

    /// Routes to the waypoint of the workload or service `of`.
    pub(crate) fn route_to_waypoint(
        &self,
        caller: RouteClient<'_>,
        target: SocketAddr,
        named: NamedGateway<'_>,
        of: &str,
        service: Option<&Arc<Service>>,
        rng: &mut dyn RngCore,
    ) -> Result<Route, RouteError> {
        let found = self
            .find_gateway(caller.client_location(), named, target.ip(), rng)
            .filter(|found| found.workload.network() == &caller.source.network)
            .ok_or_else(|| self.waypoint_error(named.gateway, of.to_owned()))?;
        Ok(tunnel_to_waypoint(&found, named.gateway, target, service))
    }

    /// Returns the error for a waypoint without a usable pod.
    fn waypoint_error(&self, named: &GatewayAddress, of: String) -> RouteError {
        let waypoint = named.destination.to_string();
        match self.is_gateway_known(named) {
            true => RouteError::NoWaypointPod { waypoint, of },
            false => RouteError::UnknownWaypoint { waypoint, of },
        }
    }

    /// Routes to an endpoint or waypoint of another network through its gateway. The gateway chooses the endpoint, so
    /// the inner tunnel accepts all identities of the service, and no others.
    fn route_through_gateway(
        &self,
        caller: RouteClient<'_>,
        dst: SocketAddr,
        service: &Arc<Service>,
        workload: &WorkloadRef,
        expected: Identities,
        rng: &mut dyn RngCore,
    ) -> Result<Route, RouteError> {
        let gateway = workload
            .template()
            .network_gateway
            .as_deref()
            .ok_or_else(|| RouteError::NoDestination {
                workload: workload.uid().clone(),
            })?;
        if expected.is_empty() {
            return Err(RouteError::NoIdentities {
                service: service.namespaced_hostname(),
            });
        }
        // The gateway is in its own network, but its address is reachable from here.
        let here = ClientLocation {
            network: gateway_network(gateway, workload),
            ..caller.client_location()
        };
        let found = self
            .find_gateway(here, gateway, dst.ip(), rng)
            .ok_or_else(|| RouteError::UnknownGateway {
                gateway: gateway.destination.to_string(),
                of: workload.uid().to_string(),
            })?;
        let authority = host_authority(&service.hostname, dst.port());
        let outer = HboneRoute {
            addr: SocketAddr::new(found.ip.unwrap_or(UNRESOLVED_IP), found.port),
            authority: authority.clone(),
            expected_identities: found.identities(),
            workload: found.workload.clone(),
            service: Some(service.clone()),
            waypoint: None,
        };
        let route = Route::DoubleHbone {
            outer,
            inner: InnerTunnel {
                authority,
                expected_identities: expected,
            },
        };
        Ok(with_resolved_address(
            route,
            found.ip,
            found.hostname(),
            dst,
            false,
        ))
    }
}

/// Local workload whose connection is routed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouteClient<'a> {
    pub(crate) source: &'a Workload,
    /// Uids of workloads to which connections failed, as in [`MeshTable::outbound_excluding`].
    pub(crate) failed_workloads: &'a [ArcStr],
}

impl<'a> RouteClient<'a> {
    fn client_location(self) -> ClientLocation<'a> {
        ClientLocation {
            failed_workloads: self.failed_workloads,
            ..self.source.into()
        }
    }
}

/// Placeholder address of a route whose host name is not resolved yet.
const UNRESOLVED_IP: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

fn gateway_network<'a>(gateway: &'a GatewayAddress, workload: &'a WorkloadRef) -> &'a ArcStr {
    match &gateway.destination {
        GatewayDestination::Address(at) => &at.network,
        GatewayDestination::Hostname(_) => workload.network(),
    }
}

/// Builds the route to a waypoint; its CONNECT request names the dialed address, since the waypoint does the load
/// balancing.
pub(crate) fn tunnel_to_waypoint(
    found: &GatewayWorkload<'_>,
    waypoint: &GatewayAddress,
    dst: SocketAddr,
    service: Option<&Arc<Service>>,
) -> Route {
    let route = Route::Hbone(HboneRoute {
        addr: SocketAddr::new(found.ip.unwrap_or(UNRESOLVED_IP), found.port),
        authority: dst.to_string(),
        expected_identities: found.identities(),
        workload: found.workload.clone(),
        service: service.cloned(),
        waypoint: Some(waypoint.destination.to_string().into()),
    });
    with_resolved_address(route, found.ip, found.hostname(), dst, false)
}

/// Routes to the endpoint itself, by a tunnel if the endpoint supports HBONE.
pub(crate) fn route_direct(
    workload: &WorkloadRef,
    dialled: IpAddr,
    port: u16,
    service: Option<&Arc<Service>>,
) -> Result<Route, RouteError> {
    let ip = select_ip(
        workload,
        dialled,
        service.and_then(|service| service.ip_families),
    );
    let hostname = &workload.template().hostname;
    if ip.is_none() && hostname.is_empty() {
        return Err(RouteError::NoDestination {
            workload: workload.uid().clone(),
        });
    }
    let target = SocketAddr::new(ip.unwrap_or(UNRESOLVED_IP), port);
    let service = service.cloned();
    let route = match workload.protocol() {
        Protocol::Tcp => Route::Plain(PlainRoute {
            addr: target,
            workload: workload.clone(),
            service,
        }),
        Protocol::Hbone => Route::Hbone(HboneRoute {
            addr: SocketAddr::new(target.ip(), HBONE_PORT),
            authority: target.to_string(),
            expected_identities: server_identities(Some(workload), service.as_deref()),
            workload: workload.clone(),
            service,
            waypoint: None,
        }),
    };
    Ok(with_resolved_address(
        route,
        ip,
        hostname,
        SocketAddr::new(dialled, port),
        true,
    ))
}

fn with_resolved_address(
    route: Route,
    ip: Option<IpAddr>,
    hostname: &ArcStr,
    dialled: SocketAddr,
    authority_is_addr: bool,
) -> Route {
    if ip.is_some() {
        return route;
    }
    Route::NeedsDns(PendingRoute {
        hostname: hostname.clone(),
        prefer_ipv6: dialled.is_ipv6(),
        route: Box::new(route),
        authority_is_addr,
    })
}

fn host_authority(hostname: &str, port: u16) -> String {
    format!("{hostname}:{port}")
}
