//! A service: a name, its virtual addresses and ports, and how endpoints are chosen.

use std::{collections::BTreeMap, net::IpAddr};

use arcstr::ArcStr;
use ipnet::IpNet;

use crate::{GatewayAddress, NamespacedHostname, NetworkAddress, PortMap};

/// The address families that clients may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpFamilies {
    /// Addresses of IPv4 only.
    Ipv4,
    /// Addresses of IPv6 only.
    Ipv6,
    /// Addresses of both families.
    Dual,
}

impl IpFamilies {
    /// Whether an address may be used.
    pub fn accepts(self, ip: IpAddr) -> bool {
        match self {
            Self::Ipv4 => ip.is_ipv4(),
            Self::Ipv6 => ip.is_ipv6(),
            Self::Dual => true,
        }
    }
}

/// The clients that see the service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Visibility {
    /// Clients of all namespaces.
    #[default]
    Public,
    /// Clients of the service's namespace.
    Namespace,
}

/// A property that a client and an endpoint may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LbScope {
    /// Endpoints in the same region.
    Region,
    /// Endpoints in the same zone.
    Zone,
    /// Endpoints in the same subzone.
    Subzone,
    /// Endpoints on the same node.
    Node,
    /// Endpoints of the same cluster.
    Cluster,
    /// Endpoints of the same network.
    Network,
}

/// How scopes select endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LbMode {
    /// Endpoints at any place.
    #[default]
    Standard,
    /// Only endpoints that match every scope.
    Strict,
    /// The endpoints that match most leading scopes.
    Failover,
    /// Do not balance: the address that was dialled.
    Passthrough,
}

/// The endpoints that may be chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HealthPolicy {
    /// Healthy endpoints alone.
    #[default]
    OnlyHealthy,
    /// All endpoints, healthy or not.
    AllowAll,
}

/// How an endpoint is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadBalancing {
    /// Scopes, most important first.
    pub routing_preferences: Vec<LbScope>,
    /// How they select endpoints.
    pub mode: LbMode,
    /// The endpoints that may be chosen.
    pub health_policy: HealthPolicy,
}

/// Application protocol of a service's port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AppProtocol {
    /// Undeclared protocol of a port.
    #[default]
    Unknown,
    /// HTTP/1.1 in plaintext.
    Http11,
    /// HTTP/2 in plaintext.
    Http2,
    /// gRPC over HTTP/2.
    Grpc,
    /// TLS of the application's own.
    Tls,
    /// Anything over TCP.
    Tcp,
}

/// A virtual prefix: every address in it belongs to the service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CidrVip {
    /// Name of the network.
    pub network: ArcStr,
    /// Prefix of virtual addresses.
    pub cidr: IpNet,
}

/// One of several waypoints with its share of connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedWaypoint {
    /// Address of the waypoint.
    pub destination: GatewayAddress,
    /// Its share relative to the others.
    pub weight: u32,
}

/// A service of the mesh. Fields as WDS defines them (`istio.workload.Service`); endpoints are kept
/// with the workloads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// Name of the object.
    pub name: ArcStr,
    /// Namespace of the object.
    pub namespace: ArcStr,
    /// Host name of the service.
    pub hostname: ArcStr,
    /// Virtual addresses of the service.
    pub vips: Vec<NetworkAddress>,
    /// Virtual prefixes of the service.
    pub cidr_vips: Vec<CidrVip>,
    /// Service port to target port; target 0 is a named port that each endpoint maps itself.
    pub ports: PortMap,
    /// Application protocols of the ports that declare one.
    pub app_protocols: BTreeMap<u16, AppProtocol>,
    /// SPIFFE ids that endpoints may also present.
    pub subject_alt_names: Vec<ArcStr>,
    /// Waypoint for traffic addressed to the service.
    pub waypoint: Option<GatewayAddress>,
    /// Several waypoints by weight (canary).
    pub weighted_waypoints: Vec<WeightedWaypoint>,
    /// How an endpoint is chosen.
    pub load_balancing: Option<LoadBalancing>,
    /// Whether a client, known by its address, gets the same endpoint each time: Kubernetes'
    /// `sessionAffinity: ClientIP`.
    pub session_affinity: bool,
    /// The address families clients may use; `None`: that of the dialled destination.
    pub ip_families: Option<IpFamilies>,
    /// The record that clients of other namespaces use when several share a name or address.
    pub canonical: bool,
    /// The clients that see it.
    pub visibility: Visibility,
}

impl Service {
    /// The service's name.
    pub fn namespaced_hostname(&self) -> NamespacedHostname {
        NamespacedHostname::new(self.namespace.clone(), self.hostname.clone())
    }

    /// Application protocol of a port.
    pub fn app_protocol(&self, port: u16) -> AppProtocol {
        self.app_protocols.get(&port).copied().unwrap_or_default()
    }

    /// Its load balancing mode.
    pub fn lb_mode(&self) -> LbMode {
        self.load_balancing
            .as_ref()
            .map_or(LbMode::Standard, |lb| lb.mode)
    }
}
