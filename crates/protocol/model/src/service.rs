//! Services of the mesh: name, virtual addresses, ports and load balancing.

use std::{collections::BTreeMap, net::IpAddr};

use arcstr::ArcStr;
use ipnet::IpNet;

use crate::{GatewayAddress, NamespacedHostname, NetworkAddress, PortMap};

/// Address families of a service that clients may use.
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
    /// Whether an address has one of the permitted families.
    pub fn accepts(self, ip: IpAddr) -> bool {
        match self {
            Self::Ipv4 => ip.is_ipv4(),
            Self::Ipv6 => ip.is_ipv6(),
            Self::Dual => true,
        }
    }
}

/// Clients to which the service is visible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Visibility {
    /// Clients of all namespaces.
    #[default]
    Public,
    /// Clients of the service's namespace.
    Namespace,
}

/// Topology scope that load balancing compares between client and endpoint.
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

/// Load-balancing mode: how the topology scopes restrict the candidate endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LbMode {
    /// Endpoints of any topology scope.
    #[default]
    Standard,
    /// Only endpoints that match every scope.
    Strict,
    /// Endpoints that match the most leading scopes first, then others.
    Failover,
    /// No load balancing: the original destination address.
    Passthrough,
}

/// Health requirement for candidate endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HealthPolicy {
    /// Only healthy endpoints.
    #[default]
    OnlyHealthy,
    /// All endpoints, healthy or not.
    AllowAll,
}

/// Load balancing among the service's endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadBalancing {
    /// Topology scopes, most important first.
    pub routing_preferences: Vec<LbScope>,
    /// How the scopes restrict the candidate endpoints.
    pub mode: LbMode,
    /// Health requirement for candidate endpoints.
    pub health_policy: HealthPolicy,
}

/// Application protocol of a service's port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AppProtocol {
    /// The Service declares no protocol for the port.
    #[default]
    Unknown,
    /// HTTP/1.1 in plaintext.
    Http11,
    /// HTTP/2 in plaintext.
    Http2,
    /// gRPC over HTTP/2.
    Grpc,
    /// TLS that the application terminates itself.
    Tls,
    /// Opaque TCP stream.
    Tcp,
}

/// Virtual CIDR range of a service, which receives connections to any address in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CidrVip {
    /// Name of the network.
    pub network: ArcStr,
    /// CIDR range of virtual addresses.
    pub cidr: IpNet,
}

/// One of several waypoints of a service, with its share of connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedWaypoint {
    /// Address of the waypoint.
    pub destination: GatewayAddress,
    /// Weight relative to the other waypoints.
    pub weight: u32,
}

/// Service of the mesh. Fields follow WDS (`istio.workload.Service`); endpoints are stored with the workloads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// Name of the service's Kubernetes object.
    pub name: ArcStr,
    /// Namespace of the service's Kubernetes object.
    pub namespace: ArcStr,
    /// Host name of the service.
    pub hostname: ArcStr,
    /// Virtual addresses of the service.
    pub vips: Vec<NetworkAddress>,
    /// Virtual CIDR ranges of the service.
    pub cidr_vips: Vec<CidrVip>,
    /// Target port by service port. The target port 0 is a named port, which each endpoint maps itself.
    pub ports: PortMap,
    /// Application protocols of the ports that declare one.
    pub app_protocols: BTreeMap<u16, AppProtocol>,
    /// SPIFFE IDs that endpoints may present besides their own.
    pub subject_alt_names: Vec<ArcStr>,
    /// Waypoint for traffic that is addressed to the service.
    pub waypoint: Option<GatewayAddress>,
    /// Waypoints among which connections are split by weight (canary).
    pub weighted_waypoints: Vec<WeightedWaypoint>,
    /// Load balancing among the service's endpoints.
    pub load_balancing: Option<LoadBalancing>,
    /// Whether connections from one client address go to the same endpoint (Kubernetes' `sessionAffinity: ClientIP`).
    pub session_affinity: bool,
    /// Address families that clients may use; `None` means the family of the original destination.
    pub ip_families: Option<IpFamilies>,
    /// Whether clients in other namespaces use this service if several share a hostname or address.
    pub canonical: bool,
    /// Clients to which the service is visible.
    pub visibility: Visibility,
}

impl Service {
    /// Returns the namespace and hostname of the service.
    pub fn namespaced_hostname(&self) -> NamespacedHostname {
        NamespacedHostname::new(self.namespace.clone(), self.hostname.clone())
    }

    /// Returns the application protocol of a port.
    pub fn app_protocol(&self, port: u16) -> AppProtocol {
        self.app_protocols.get(&port).copied().unwrap_or_default()
    }

    /// Returns the load-balancing mode; standard if the service sets none.
    pub fn lb_mode(&self) -> LbMode {
        self.load_balancing
            .as_ref()
            .map_or(LbMode::Standard, |lb| lb.mode)
    }
}
