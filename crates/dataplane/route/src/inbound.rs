//! Routes an inbound CONNECT request to the application, if this pod is its destination.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use ambit_model::{
    AppTunnelProtocol, ArcStr, FailureReason, GatewayAddress, HBONE_PORT, INBOUND_PLAINTEXT_PORT,
    OUTBOUND_PORT, SOCKS5_PORT, Service, Workload,
};

use crate::{MeshTable, WorkloadRef};

/// Ports of the proxy inside a pod's network namespace, which are never a destination.
pub const PROXY_PORTS: [u16; 4] = [
    OUTBOUND_PORT,
    INBOUND_PLAINTEXT_PORT,
    HBONE_PORT,
    SOCKS5_PORT,
];

/// Destination that a CONNECT request names in its authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectTarget {
    /// An address and a port of the application.
    Addr(SocketAddr),
    /// A host name and a service port.
    Host {
        /// Host name, which is any text that is not an address.
        hostname: ArcStr,
        /// Port of the service.
        port: u16,
    },
}

impl fmt::Display for ConnectTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Addr(addr) => addr.fmt(f),
            Self::Host { hostname, port } => write!(f, "{hostname}:{port}"),
        }
    }
}

/// Inbound CONNECT request, with the pod and the address that received it.
#[derive(Clone, Debug)]
pub struct InboundRequest<'a> {
    /// Pod that received the connection.
    pub local_workload: &'a Workload,
    /// Local address on which the tunnel's connection was accepted.
    pub local_ip: IpAddr,
    /// Destination that the request names.
    pub target: &'a ConnectTarget,
    /// Whether applications that accept the PROXY protocol are connected to on the loopback address
    /// (`LOCALHOST_APP_TUNNEL`).
    pub localhost_app_tunnel: bool,
}

/// Route of an inbound tunnel to the local application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboundRoute {
    /// Address of the application to connect to.
    pub addr: SocketAddr,
    /// Destination by which policies authorize the tunnel: the pod's own address and the application's port.
    pub authorized_destination: SocketAddr,
    /// PROXY header to send before the client's data; the connection then comes from the loopback address, not from
    /// the client's.
    pub proxy_header: Option<ProxyHeader>,
}

/// Fields of a PROXY v2 header besides the client's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyHeader {
    /// Original destination that the client requested.
    pub dst: SocketAddr,
}

/// Reason why an inbound tunnel is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InboundError {
    /// The requested address is neither the pod's, nor that of a workload or service whose waypoint the pod is.
    #[error("ip mismatch: {local} != {asked}")]
    IpMismatch {
        /// The pod's address.
        local: IpAddr,
        /// Address that the client requested.
        asked: IpAddr,
    },
    /// The requested host name belongs to no service.
    #[error("no service or workload for hostname {hostname}")]
    UnknownHostname {
        /// Host name that the client requested.
        hostname: ArcStr,
    },
    /// The service of the requested host name does not have the requested port.
    #[error("{hostname}:{port}: cannot resolve port")]
    UnknownPort {
        /// Host name that the client requested.
        hostname: ArcStr,
        /// Port that the client requested.
        port: u16,
    },
    /// The requested port belongs to the proxy itself.
    #[error("attempted recursive call to ourselves: port {port}")]
    ProxyPort {
        /// Port that the client requested.
        port: u16,
    },
}

impl InboundError {
    /// Returns the HTTP status that rejects the tunnel.
    pub fn status(&self) -> u16 {
        match self {
            Self::IpMismatch { .. } => 400,
            Self::UnknownHostname { .. } | Self::UnknownPort { .. } | Self::ProxyPort { .. } => 503,
        }
    }

    /// Returns the response flag for metrics and the access log.
    pub fn reason(&self) -> FailureReason {
        FailureReason::Connect
    }
}

impl MeshTable {
    /// Routes an inbound tunnel. Must be called before the tunnel is authorized, since policies match the route's
    /// destination.
    pub fn inbound(&self, request: &InboundRequest<'_>) -> Result<InboundRoute, InboundError> {
        let local_ip = request.local_ip.to_canonical();
        if let ConnectTarget::Addr(asked) = request.target {
            self.check_destination(request, local_ip, asked.ip().to_canonical())?;
        }
        let tunnel = request.local_workload.application_tunnel.as_ref();
        let port = match (tunnel.and_then(|tunnel| tunnel.port), request.target) {
            (Some(port), _) => port,
            (None, ConnectTarget::Addr(asked)) => asked.port(),
            (None, ConnectTarget::Host { hostname, port }) => {
                self.resolve_port(request.local_workload, hostname, *port)?
            }
        };
        if PROXY_PORTS.contains(&port) {
            return Err(InboundError::ProxyPort { port });
        }
        let authorize = SocketAddr::new(local_ip, port);
        let with_proxy = tunnel.is_some_and(|t| t.protocol == AppTunnelProtocol::Proxy);
        if !with_proxy {
            return Ok(InboundRoute {
                addr: authorize,
                authorized_destination: authorize,
                proxy_header: None,
            });
        }
        let addr = if request.localhost_app_tunnel {
            loopback_of_same_family(local_ip, port)
        } else {
            authorize
        };
        let dst = self.proxied_destination(request, local_ip)?;
        Ok(InboundRoute {
            addr,
            authorized_destination: authorize,
            proxy_header: Some(ProxyHeader { dst }),
        })
    }

    fn check_destination(
        &self,
        request: &InboundRequest<'_>,
        local_ip: IpAddr,
        asked: IpAddr,
    ) -> Result<(), InboundError> {
        let local = request.local_workload;
        if asked == local_ip
            || local.application_tunnel.is_some()
            || self.is_waypoint_of(local, asked)
        {
            return Ok(());
        }
        Err(InboundError::IpMismatch {
            local: local_ip,
            asked,
        })
    }

    /// Whether the local workload is the waypoint of the workload or service at the address `asked`.
    fn is_waypoint_of(&self, local: &Workload, asked: IpAddr) -> bool {
        let waypoints = |gateway: &GatewayAddress| self.is_gateway_workload(local, gateway);
        let exact = self.services.by_vip(&local.network, asked, None);
        let by_prefix = || self.services.by_prefix(&local.network, asked, None);
        if let Some((service, _)) = exact.or_else(by_prefix) {
            let weighted = service
                .weighted_waypoints
                .iter()
                .map(|weighted| &weighted.destination);
            if service.waypoint.iter().chain(weighted).any(waypoints) {
                return true;
            }
        }
        self.workloads
            .by_ip(&local.network, asked)
            .is_some_and(|workload| {
                let template = workload.template();
                let attached = template
                    .endpoint_waypoint
                    .as_deref()
                    .map(|attached| &attached.waypoint);
                template
                    .waypoint
                    .as_deref()
                    .into_iter()
                    .chain(attached)
                    .any(waypoints)
            })
    }

    fn resolve_port(
        &self,
        local: &Workload,
        hostname: &ArcStr,
        port: u16,
    ) -> Result<u16, InboundError> {
        let service = self.service_for(local, hostname)?;
        let own = local.services.get(&service.namespaced_hostname());
        let own = own
            .and_then(|ports| ports.get(&port))
            .copied()
            .filter(|port| *port != 0);
        let by_service = service.ports.get(&port).copied().filter(|port| *port != 0);
        own.or(by_service).ok_or_else(|| InboundError::UnknownPort {
            hostname: hostname.clone(),
            port,
        })
    }

    fn service_for(
        &self,
        local: &Workload,
        hostname: &ArcStr,
    ) -> Result<&Arc<Service>, InboundError> {
        self.service_by_hostname(hostname, &local.namespace)
            .ok_or_else(|| InboundError::UnknownHostname {
                hostname: hostname.clone(),
            })
    }

    /// Returns the original destination for a PROXY header: the requested address, or the service's own.
    fn proxied_destination(
        &self,
        request: &InboundRequest<'_>,
        local_ip: IpAddr,
    ) -> Result<SocketAddr, InboundError> {
        match request.target {
            ConnectTarget::Addr(asked) => Ok(ambit_model::canonical_socket_address(*asked)),
            ConnectTarget::Host { hostname, port } => {
                let service = self.service_for(request.local_workload, hostname)?;
                let vip = service.vips.iter().min_by_key(|vip| {
                    (
                        vip.network != request.local_workload.network,
                        vip.address.is_ipv6(),
                    )
                });
                Ok(SocketAddr::new(
                    vip.map_or(local_ip, |vip| vip.address),
                    *port,
                ))
            }
        }
    }

    /// Returns the service of an inbound connection to `port` for telemetry: the one that the client named, if the
    /// workload is its endpoint; else the workload's first service with that target port.
    pub fn inbound_service(
        &self,
        local: &Workload,
        named_host: Option<&str>,
        port: u16,
    ) -> Option<&Arc<Service>> {
        if let Some(named_host) = named_host {
            let name = local
                .services
                .keys()
                .find(|name| name.hostname == named_host)?;
            return self.service(name);
        }
        local.services.iter().find_map(|(name, own)| {
            let service = self.service(name)?;
            let is_target = service.ports.iter().any(|(service_port, target)| {
                let own = own.get(service_port).copied().filter(|own| *own != 0);
                own.unwrap_or(*target) == port
            });
            is_target.then_some(service)
        })
    }

    /// Returns the workload that opened an inbound connection, by its address in the local network.
    pub fn inbound_source(&self, local: &Workload, ip: IpAddr) -> Option<&WorkloadRef> {
        self.workload_by_ip(&local.network, ip)
    }
}

fn loopback_of_same_family(like: IpAddr, port: u16) -> SocketAddr {
    let ip = match like {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    };
    SocketAddr::new(ip, port)
}
