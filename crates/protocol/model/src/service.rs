//! A service: a name, its virtual addresses and ports, and how endpoints are chosen.

use std::net::IpAddr;

use arcstr::ArcStr;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{GatewayAddress, NamespacedHostname, NetworkAddress, PortMap};

/// The address families that clients may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum IpFamilies {
    /// IPv4 only.
    #[serde(rename = "IPv4")]
    Ipv4,
    /// IPv6 only.
    #[serde(rename = "IPv6")]
    Ipv6,
    /// Both.
    #[serde(rename = "Dual")]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Visibility {
    /// All.
    #[default]
    Public,
    /// Those of the service's namespace.
    Namespace,
}

/// A property that a client and an endpoint may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LbScope {
    /// Same region.
    Region,
    /// Same zone.
    Zone,
    /// Same subzone.
    Subzone,
    /// Same node.
    Node,
    /// Same cluster.
    Cluster,
    /// Same network.
    Network,
}

/// How scopes select endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LbMode {
    /// All endpoints.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HealthPolicy {
    /// Healthy ones.
    #[default]
    OnlyHealthy,
    /// All.
    AllowAll,
}

/// How an endpoint is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancing {
    /// Scopes, most important first.
    pub routing_preferences: Vec<LbScope>,
    /// How they select endpoints.
    pub mode: LbMode,
    /// The endpoints that may be chosen.
    pub health_policy: HealthPolicy,
}

/// A virtual prefix: every address in it belongs to the service.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CidrVip {
    /// Network name.
    pub network: ArcStr,
    /// The prefix.
    pub cidr: IpNet,
}

/// One of several waypoints with its share of connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightedWaypoint {
    /// The waypoint.
    pub destination: GatewayAddress,
    /// Its share relative to the others.
    pub weight: u32,
}

/// A service of the mesh. Fields as WDS defines them (`istio.workload.Service`); endpoints are kept
/// with the workloads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Service {
    /// Object name.
    pub name: ArcStr,
    /// Kubernetes namespace.
    pub namespace: ArcStr,
    /// Host name.
    pub hostname: ArcStr,
    /// Virtual addresses.
    pub vips: Vec<NetworkAddress>,
    /// Virtual prefixes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cidr_vips: Vec<CidrVip>,
    /// Service port to target port; target 0 is a named port that each endpoint maps itself.
    pub ports: PortMap,
    /// SPIFFE ids that endpoints may also present.
    pub subject_alt_names: Vec<ArcStr>,
    /// Waypoint for traffic addressed to the service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waypoint: Option<GatewayAddress>,
    /// Several waypoints by weight (canary).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub weighted_waypoints: Vec<WeightedWaypoint>,
    /// How an endpoint is chosen.
    #[serde(rename = "loadBalancer", skip_serializing_if = "Option::is_none")]
    pub load_balancing: Option<LoadBalancing>,
    /// Whether a client, known by its address, gets the same endpoint each time: Kubernetes'
    /// `sessionAffinity: ClientIP`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub session_affinity: bool,
    /// The address families clients may use; `None`: that of the dialled destination.
    #[serde(skip_serializing_if = "Option::is_none")]
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

    /// Its load balancing mode.
    pub fn lb_mode(&self) -> LbMode {
        self.load_balancing
            .as_ref()
            .map_or(LbMode::Standard, |lb| lb.mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_local_file_entry_is_read() {
        let json = r#"{"name":"a","namespace":"default","hostname":"example.com",
            "vips":["/127.10.0.1"],"ports":{"80":8080},"canonical":true}"#;
        let service: Service = serde_json::from_str(json).unwrap();
        assert_eq!(service.ports[&80], 8080);
        assert_eq!(service.vips[0].to_string(), "/127.10.0.1");
        assert_eq!(
            service.namespaced_hostname().to_string(),
            "default/example.com"
        );
    }
}
