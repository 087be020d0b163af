//! JSON forms of services, and of the types that they contain.

use std::collections::BTreeMap;

use ambit_model::{
    AppProtocol, ArcStr, CidrVip, GatewayAddress, HealthPolicy, IpFamilies, LbMode, LbScope,
    LoadBalancing, NetworkAddress, PortMap, Service, Visibility, WeightedWaypoint,
};
use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_with::{DeserializeAs, DisplayFromStr, SerializeAs, serde_as};

use crate::{
    forms,
    names::{GatewayJson, PortsJson},
};

/// JSON form of [`IpFamilies`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "IpFamilies")]
enum IpFamiliesForm {
    #[serde(rename = "IPv4")]
    Ipv4,
    #[serde(rename = "IPv6")]
    Ipv6,
    Dual,
}

/// JSON form of [`AppProtocol`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "AppProtocol", rename_all = "UPPERCASE")]
enum AppProtocolForm {
    Unknown,
    Http11,
    Http2,
    Grpc,
    Tls,
    Tcp,
}

/// JSON form of [`Visibility`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Visibility")]
enum VisibilityForm {
    Public,
    Namespace,
}

/// JSON form of [`LbScope`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "LbScope")]
enum LbScopeForm {
    Region,
    Zone,
    Subzone,
    Node,
    Cluster,
    Network,
}

/// JSON form of [`LbMode`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "LbMode")]
enum LbModeForm {
    Standard,
    Strict,
    Failover,
    Passthrough,
}

/// JSON form of [`HealthPolicy`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "HealthPolicy")]
enum HealthPolicyForm {
    OnlyHealthy,
    AllowAll,
}

/// JSON form of [`LoadBalancing`].
#[serde_as]
#[derive(Serialize, Deserialize)]
#[serde(
    remote = "LoadBalancing",
    rename_all = "camelCase",
    default = "LoadBalancing::default"
)]
struct LoadBalancingForm {
    #[serde_as(as = "Vec<LbScopeForm>")]
    routing_preferences: Vec<LbScope>,
    #[serde_as(as = "LbModeForm")]
    mode: LbMode,
    #[serde_as(as = "HealthPolicyForm")]
    health_policy: HealthPolicy,
}

/// JSON form of [`CidrVip`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "CidrVip")]
struct CidrVipForm {
    network: ArcStr,
    cidr: IpNet,
}

/// JSON form of [`WeightedWaypoint`].
#[serde_as]
#[derive(Serialize, Deserialize)]
#[serde(remote = "WeightedWaypoint")]
struct WeightedWaypointForm {
    #[serde_as(as = "GatewayJson")]
    destination: GatewayAddress,
    weight: u32,
}

/// JSON form of [`Service`].
#[serde_as]
#[derive(Serialize, Deserialize)]
#[serde(
    remote = "Service",
    rename_all = "camelCase",
    default = "Service::default",
    deny_unknown_fields
)]
struct ServiceForm {
    name: ArcStr,
    namespace: ArcStr,
    hostname: ArcStr,
    #[serde_as(as = "Vec<DisplayFromStr>")]
    vips: Vec<NetworkAddress>,
    #[serde_as(as = "Vec<CidrVipForm>")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cidr_vips: Vec<CidrVip>,
    #[serde_as(as = "PortsJson")]
    ports: PortMap,
    // Dumps have no such field.
    #[serde_as(as = "BTreeMap<_, AppProtocolForm>")]
    #[serde(skip_serializing)]
    app_protocols: BTreeMap<u16, AppProtocol>,
    subject_alt_names: Vec<ArcStr>,
    #[serde_as(as = "Option<GatewayJson>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    waypoint: Option<GatewayAddress>,
    #[serde_as(as = "Vec<WeightedWaypointForm>")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    weighted_waypoints: Vec<WeightedWaypoint>,
    #[serde_as(as = "Option<LoadBalancingForm>")]
    #[serde(rename = "loadBalancer", skip_serializing_if = "Option::is_none")]
    load_balancing: Option<LoadBalancing>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    session_affinity: bool,
    #[serde_as(as = "Option<IpFamiliesForm>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    ip_families: Option<IpFamilies>,
    canonical: bool,
    #[serde_as(as = "VisibilityForm")]
    visibility: Visibility,
}

forms!(
    IpFamiliesForm of IpFamilies,
    AppProtocolForm of AppProtocol,
    VisibilityForm of Visibility,
    LbScopeForm of LbScope,
    LbModeForm of LbMode,
    HealthPolicyForm of HealthPolicy,
    LoadBalancingForm of LoadBalancing,
    CidrVipForm of CidrVip,
    WeightedWaypointForm of WeightedWaypoint,
    ServiceForm of Service,
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Json;

    #[test]
    fn a_local_file_entry_is_read() {
        let json = r#"{"name":"a","namespace":"default","hostname":"example.com",
            "vips":["/127.10.0.1"],"ports":{"80":8080},"canonical":true}"#;
        let Json(service) = serde_json::from_str::<Json<Service>>(json).unwrap();
        assert_eq!(service.ports[&80], 8080);
        assert_eq!(service.vips[0].to_string(), "/127.10.0.1");
        assert_eq!(
            service.namespaced_hostname().to_string(),
            "default/example.com"
        );
    }
}
