//! Target of a tunnel: a service that the waypoint serves, or a pod that it manages.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use ambit_codec::Authority;
use ambit_l7::stream::StreamTable;
use ambit_model::{
    AppProtocol, ArcStr, LbMode, NamespacedHostname, NetworkAddress, Service, Workload,
};
use ambit_route::{ActiveRequestsAt, BackendRequest, Route, RouteError, WorkloadRef};
use http::StatusCode;
use tokio::time::{Instant, sleep_until};

use crate::{
    names,
    published::ServedService,
    waypoint::{NotReadyError, Waypoint},
};

/// Unspecified address, which stands in for the address of a service that has none.
pub(crate) const UNKNOWN_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Time to wait for the record of an unknown target. Records reach clients and the waypoint within milliseconds of each
/// other, or within tenths of a second on a busy machine.
const RECORD_TIMEOUT: Duration = Duration::from_secs(1);

/// Service or pod that the CONNECT of a tunnel names.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// Service that the authority of the CONNECT names by address or hostname.
    Service {
        /// Record of the service.
        service: Arc<Service>,
        /// Routes and settings of the service at this waypoint.
        served: Arc<ServedService>,
        /// Address in the authority; for a hostname, the first address of the service.
        address: SocketAddr,
    },
    /// Pod whose address the authority of the CONNECT names.
    Pod {
        /// Record of the pod.
        workload: WorkloadRef,
        /// Address of the pod and port that the client called.
        address: SocketAddr,
    },
}

/// Reason why a CONNECT has no valid target.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TargetError {
    #[error(transparent)]
    NotReady(#[from] NotReadyError),
    #[error("{0} is neither a service nor a pod of this waypoint")]
    NotServed(String),
    #[error("{service} has no port {port}")]
    NoPort { service: String, port: u16 },
}

impl TargetError {
    /// Whether the error may disappear when the control plane's next records arrive.
    fn is_transient(&self) -> bool {
        match self {
            Self::NotServed(_) | Self::NoPort { .. } => true,
            // The lookup has already waited for the record.
            Self::NotReady(_) => false,
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::NotReady(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::NotServed(_) | Self::NoPort { .. } => StatusCode::NOT_FOUND,
        }
    }
}

impl Target {
    /// Resolves the authority of a CONNECT for a client of this namespace. Waits up to [`RECORD_TIMEOUT`] for an
    /// unknown target, since the client may receive the record that names this waypoint before the waypoint does.
    pub(crate) async fn find(
        waypoint: &Waypoint,
        own: &Workload,
        client: &str,
        authority: &Authority,
    ) -> Result<Self, TargetError> {
        let deadline = Instant::now() + RECORD_TIMEOUT;
        let mut addresses = waypoint.state.watch_addresses();
        let mut records = waypoint.published.watch();
        loop {
            addresses.mark_unchanged();
            records.mark_unchanged();
            let found = Self::find_record(waypoint, own, client, authority).await;
            if !matches!(&found, Err(error) if error.is_transient()) {
                return found;
            }
            let changed = tokio::select! {
                changed = addresses.changed() => changed,
                changed = records.changed() => changed,
                () = sleep_until(deadline) => return found,
            };
            if changed.is_err() {
                return found;
            }
        }
    }

    async fn find_record(
        waypoint: &Waypoint,
        own: &Workload,
        client: &str,
        authority: &Authority,
    ) -> Result<Self, TargetError> {
        let not_served = || TargetError::NotServed(authority.to_string());
        let address = match authority {
            Authority::Ip(address) => *address,
            Authority::Host { host, port } => {
                let found = {
                    let table = waypoint.state.table();
                    let is_served = |service: &Service| {
                        let name = service.namespaced_hostname();
                        waypoint.published.service(&name).is_some()
                    };
                    table
                        .service_by_hostname_where(host, client, is_served)
                        .cloned()
                };
                let service = found.ok_or_else(not_served)?;
                return Self::from_served_service(waypoint, service, None, *port)
                    .ok_or_else(not_served)?;
            }
        };
        let at = NetworkAddress::new(own.network.clone(), address.ip());
        waypoint.request_record(&at).await;
        let table = waypoint.state.table();
        let service = table.service_by_vip(&at.network, at.address, client);
        if let Some(service) = service.cloned() {
            let found = Self::from_served_service(waypoint, service, Some(address), address.port());
            return found.ok_or_else(not_served)?;
        }
        let workload = table.workload_by_ip(&at.network, at.address);
        let managed = workload.filter(|workload| workload.names_waypoint(&waypoint.address));
        let workload = managed.ok_or_else(not_served)?.clone();
        Ok(Self::Pod { workload, address })
    }

    /// Builds the target for a served service; fails if the service does not have the port.
    fn from_served_service(
        waypoint: &Waypoint,
        service: Arc<Service>,
        address: Option<SocketAddr>,
        port: u16,
    ) -> Option<Result<Self, TargetError>> {
        let name = service.namespaced_hostname();
        let served = waypoint.published.service(&name)?;
        if service.ports.get(&port).is_none() {
            let service = name.to_string();
            return Some(Err(TargetError::NoPort { service, port }));
        }
        let first = service.vips.first().map(|vip| vip.address);
        let first = first.unwrap_or(UNKNOWN_ADDRESS);
        Some(Ok(Self::Service {
            address: address.unwrap_or_else(|| SocketAddr::new(first, port)),
            service,
            served,
        }))
    }

    /// Returns the target for another service at the same port, such as a more specific service than a wildcard; `None`
    /// if this waypoint does not serve that service.
    pub(crate) fn for_service(&self, waypoint: &Waypoint, service: Arc<Service>) -> Option<Self> {
        let served = waypoint.published.service(&service.namespaced_hostname())?;
        let requested = self.address();
        let first = service.vips.first().map(|vip| vip.address);
        let ip = match service.lb_mode() {
            LbMode::Passthrough => requested.ip(),
            _ => first.unwrap_or(UNKNOWN_ADDRESS),
        };
        Some(Self::Service {
            service,
            served,
            address: SocketAddr::new(ip, requested.port()),
        })
    }

    /// Whether the target is a service with a wildcard hostname.
    pub(crate) fn is_wildcard(&self) -> bool {
        self.service_record()
            .is_some_and(|one| one.hostname.starts_with('*'))
    }

    /// Whether the target is a wildcard service whose hosts the waypoint resolves by DNS, as each request names them.
    pub(crate) fn resolves_hosts(&self) -> bool {
        matches!(self, Self::Service { served, .. } if served.resolves_hosts)
    }

    /// Parses a host (as in `Host` or SNI) that is below the hostname of the target's wildcard service; `None` if it is
    /// not.
    pub(crate) fn host_below_wildcard(&self, text: &str) -> Option<ArcStr> {
        let name = self.service_name()?;
        Some(names::parse_wildcard_host(&name.hostname, text)?.into())
    }

    /// Returns the port at which hosts below the wildcard are called: the service port's target port.
    pub(crate) fn host_port(&self) -> u16 {
        let port = self.address().port();
        let service = self.service_record();
        let target = service.and_then(|service| service.ports.get(&port));
        target.copied().unwrap_or(port)
    }

    /// Returns the route to the original destination, if the target is a service without load balancing (`resolution:
    /// NONE`).
    pub(crate) fn pass_through_route(&self, waypoint: &Waypoint) -> Option<Route> {
        let Self::Service {
            service, address, ..
        } = self
        else {
            return None;
        };
        if service.lb_mode() != LbMode::Passthrough || address.ip() == UNKNOWN_ADDRESS {
            return None;
        }
        let at = waypoint.state.table();
        let network = service.vips.first().map(|vip| &vip.network);
        let network = network.or_else(|| service.cidr_vips.first().map(|vip| &vip.network))?;
        // Addresses of known workloads and services are called through the mesh.
        if at.workload_by_ip(network, address.ip()).is_some() {
            return None;
        }
        Some(Route::Passthrough {
            dst: *address,
            service: Some(service.clone()),
        })
    }

    /// Returns the IP address that the client called, if it called one.
    pub(crate) fn requested_ip(&self) -> Option<IpAddr> {
        let ip = self.address().ip();
        (!ip.is_unspecified()).then_some(ip)
    }

    /// Returns the address that the client called.
    pub(crate) fn address(&self) -> SocketAddr {
        match self {
            Self::Service { address, .. } | Self::Pod { address, .. } => *address,
        }
    }

    /// Returns the target's service; `None` for a pod.
    pub(crate) fn service_record(&self) -> Option<&Arc<Service>> {
        match self {
            Self::Service { service, .. } => Some(service),
            Self::Pod { .. } => None,
        }
    }

    /// Whether the target is this port of this service.
    pub(crate) fn is_service_port(&self, service: &NamespacedHostname, port: u16) -> bool {
        self.service_name() == Some(service) && self.address().port() == port
    }

    /// Returns the name of the target's service; `None` for a pod.
    pub(crate) fn service_name(&self) -> Option<&NamespacedHostname> {
        match self {
            Self::Service { served, .. } => Some(&served.name),
            Self::Pod { .. } => None,
        }
    }

    /// Returns the declared protocol of the called port.
    pub(crate) fn app_protocol(&self) -> AppProtocol {
        match self {
            Self::Service {
                service, address, ..
            } => service.app_protocol(address.port()),
            Self::Pod { .. } => AppProtocol::Unknown,
        }
    }

    /// Returns the TCP or TLS routes for connections of a client in this namespace, if there are any.
    pub(crate) fn stream_routes(&self, client: Option<&str>) -> Option<Arc<StreamTable>> {
        let Self::Service {
            served, address, ..
        } = self
        else {
            return None;
        };
        let table = served.stream_routes(address.port(), client);
        table.has_routes().then_some(table)
    }

    /// Whether the target has HTTP routes for clients of this namespace, so that a port with undeclared protocol must
    /// be HTTP.
    pub(crate) fn has_http_routes(&self, client: Option<&str>) -> bool {
        match self {
            Self::Service {
                served, address, ..
            } => served.routes(address.port(), client).has_routes(),
            Self::Pod { .. } => false,
        }
    }

    /// Chooses an endpoint of the target, and returns the route to it: the less loaded of two random endpoints that are
    /// not in `failed`.
    pub(crate) fn route(
        &self,
        waypoint: &Waypoint,
        own: &Workload,
        failed: &[ArcStr],
        load: Option<ActiveRequestsAt<'_>>,
    ) -> Result<Route, RouteError> {
        let request = BackendRequest {
            waypoint: own,
            own_address: Some(&waypoint.address),
            is_called_service: true,
            failed_workloads: failed,
            dialed_ip: self.requested_ip(),
        };
        let table = waypoint.state.table();
        match self {
            Self::Service {
                served, address, ..
            } => {
                let rng = &mut rand::rng();
                table.route_to_backend(&request, &served.name, address.port(), load, rng)
            }
            Self::Pod { workload, address } => table.route_to_pod(&request, workload, *address),
        }
    }
}
