//! JSON forms of workloads, and of the types that they contain.

use std::{collections::BTreeMap, fmt, net::IpAddr};

use ambit_model::{
    AppTunnel, AppTunnelProtocol, ArcStr, EndpointWaypoint, GatewayAddress, Identity, Locality,
    NamespacedHostname, NetworkMode, PodName, PortMap, Protocol, StringMatch, WaypointRule,
    Workload, WorkloadKind, WorkloadStatus, WorkloadUid,
};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_with::{
    DeserializeAs, DisplayFromStr, SerializeAs, de::DeserializeAsWrap, ser::SerializeAsWrap,
    serde_as,
};

use crate::{
    forms,
    names::{GatewayJson, PortsJson},
    policy::StringMatchForm,
};

/// JSON form of [`Protocol`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Protocol", rename_all = "UPPERCASE")]
enum ProtocolForm {
    Tcp,
    Hbone,
}

/// JSON form of [`NetworkMode`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "NetworkMode")]
enum NetworkModeForm {
    Standard,
    HostNetwork,
}

/// JSON form of [`WorkloadStatus`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "WorkloadStatus")]
enum StatusForm {
    Healthy,
    Unhealthy,
}

/// JSON form of [`WorkloadKind`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "WorkloadKind", rename_all = "lowercase")]
enum KindForm {
    Deployment,
    Cronjob,
    Pod,
    Job,
}

/// JSON form of [`AppTunnel`].
#[serde_as]
#[derive(Serialize, Deserialize)]
#[serde(remote = "AppTunnel")]
struct AppTunnelForm {
    #[serde_as(as = "AppTunnelProtocolForm")]
    protocol: AppTunnelProtocol,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
}

/// JSON form of [`AppTunnelProtocol`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "AppTunnelProtocol", rename_all = "UPPERCASE")]
enum AppTunnelProtocolForm {
    None,
    Proxy,
}

/// JSON form of [`Locality`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Locality", default = "Locality::default")]
struct LocalityForm {
    region: ArcStr,
    zone: ArcStr,
    subzone: ArcStr,
}

/// JSON form of [`EndpointWaypoint`].
#[serde_as]
#[derive(Serialize, Deserialize)]
#[serde(remote = "EndpointWaypoint", rename_all = "camelCase")]
struct EndpointWaypointForm {
    #[serde_as(as = "GatewayJson")]
    waypoint: GatewayAddress,
    #[serde_as(as = "Vec<DisplayFromStr>")]
    identities: Vec<Identity>,
    enforce: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    refuse: bool,
    #[serde(default = "default_true")]
    for_services: bool,
    #[serde_as(as = "Option<Vec<WaypointRuleForm>>")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rules: Option<Vec<WaypointRule>>,
}

/// JSON form of [`WaypointRule`].
#[serde_as]
#[derive(Serialize, Deserialize)]
#[serde(remote = "WaypointRule", rename_all = "camelCase", deny_unknown_fields)]
struct WaypointRuleForm {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ports: Vec<u16>,
    #[serde_as(as = "Vec<StringMatchForm>")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    principals: Vec<StringMatch>,
    #[serde_as(as = "Vec<StringMatchForm>")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    namespaces: Vec<StringMatch>,
}

/// Returns true, the default of a field that older local mesh files do not have.
fn default_true() -> bool {
    true
}

/// JSON form of [`PodName`], also for fields of other types: `#[serde(with = "ambit_mesh_json::PodNameForm")]`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(remote = "PodName", rename_all = "camelCase")]
pub struct PodNameForm {
    name: ArcStr,
    namespace: ArcStr,
    service_account: ArcStr,
}

/// JSON form of [`Workload`].
#[serde_as]
#[derive(Serialize, Deserialize)]
#[serde(
    remote = "Workload",
    rename_all = "camelCase",
    default = "Workload::default",
    deny_unknown_fields
)]
struct WorkloadForm {
    uid: WorkloadUid,
    name: ArcStr,
    namespace: ArcStr,
    workload_ips: Vec<IpAddr>,
    network: ArcStr,
    #[serde_as(as = "ProtocolForm")]
    protocol: Protocol,
    #[serde_as(as = "NetworkModeForm")]
    network_mode: NetworkMode,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    native_tunnel: bool,
    trust_domain: ArcStr,
    service_account: ArcStr,
    #[serde_as(as = "Option<GatewayJson>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    waypoint: Option<GatewayAddress>,
    #[serde_as(as = "Option<GatewayJson>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    network_gateway: Option<GatewayAddress>,
    workload_name: ArcStr,
    #[serde_as(as = "KindForm")]
    workload_type: WorkloadKind,
    canonical_name: ArcStr,
    canonical_revision: ArcStr,
    #[serde(skip_serializing_if = "ArcStr::is_empty")]
    hostname: ArcStr,
    node: ArcStr,
    authorization_policies: Vec<ArcStr>,
    #[serde_as(as = "StatusForm")]
    status: WorkloadStatus,
    cluster_id: ArcStr,
    #[serde_as(as = "LocalityForm")]
    #[serde(skip_serializing_if = "Locality::is_empty")]
    locality: Locality,
    #[serde_as(as = "ServicesJson")]
    services: BTreeMap<NamespacedHostname, PortMap>,
    capacity: u32,
    #[serde_as(as = "Option<AppTunnelForm>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    application_tunnel: Option<AppTunnel>,
    #[serde_as(as = "Option<EndpointWaypointForm>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint_waypoint: Option<EndpointWaypoint>,
}

forms!(
    ProtocolForm of Protocol,
    NetworkModeForm of NetworkMode,
    StatusForm of WorkloadStatus,
    KindForm of WorkloadKind,
    AppTunnelForm of AppTunnel,
    AppTunnelProtocolForm of AppTunnelProtocol,
    LocalityForm of Locality,
    PodNameForm of PodName,
    EndpointWaypointForm of EndpointWaypoint,
    WaypointRuleForm of WaypointRule,
    WorkloadForm of Workload,
);

/// JSON form of a workload's `services`. `/config_dump` prints a list of names, since the endpoints have the ports;
/// local files have a map from name to ports. Both are accepted.
struct ServicesJson;

type Services = BTreeMap<NamespacedHostname, PortMap>;
type HostnameJson = DeserializeAsWrap<NamespacedHostname, DisplayFromStr>;
type Ports = DeserializeAsWrap<PortMap, PortsJson>;

impl SerializeAs<Services> for ServicesJson {
    fn serialize_as<S: Serializer>(services: &Services, serializer: S) -> Result<S::Ok, S::Error> {
        let names = services.keys();
        serializer.collect_seq(names.map(SerializeAsWrap::<_, DisplayFromStr>::new))
    }
}

impl<'de> DeserializeAs<'de, Services> for ServicesJson {
    fn deserialize_as<D: Deserializer<'de>>(deserializer: D) -> Result<Services, D::Error> {
        deserializer.deserialize_any(ServicesVisitor)
    }
}

/// Visitor that deserializes `services`. An untagged enum would misread YAML's numeric keys.
struct ServicesVisitor;

impl<'de> Visitor<'de> for ServicesVisitor {
    type Value = Services;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of <namespace>/<hostname>, or a map of them to ports")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Services, A::Error> {
        let mut services = Services::new();
        while let Some(name) = list.next_element::<HostnameJson>()? {
            services.insert(name.into_inner(), PortMap::new());
        }
        Ok(services)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Services, A::Error> {
        let mut services = Services::new();
        while let Some((name, ports)) = map.next_entry::<HostnameJson, Ports>()? {
            services.insert(name.into_inner(), ports.into_inner());
        }
        Ok(services)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Json;

    #[test]
    fn a_local_file_entry_is_read() {
        let json = r#"{"uid":"c1//Pod/default/a","name":"a","namespace":"default",
            "serviceAccount":"default","workloadIps":["127.0.0.1"],"protocol":"HBONE","node":"local",
            "network":"","services":{"default/example.com":{"80":8080}}}"#;
        let Json(workload) = serde_json::from_str::<Json<Workload>>(json).unwrap();
        assert_eq!(
            workload.identity().to_string(),
            "spiffe://cluster.local/ns/default/sa/default"
        );
        let ports = &workload.services[&NamespacedHostname::new("default", "example.com")];
        assert_eq!(ports[&80], 8080);
        assert_eq!(workload.capacity, 1);
    }

    #[test]
    fn every_field_is_read_as_it_is_printed() {
        let waypoint = GatewayAddress {
            destination: "default/waypoint.default.svc".parse().unwrap(),
            hbone_mtls_port: 15008,
        };
        let workload = Json(Workload {
            uid: "c1//Pod/default/a".into(),
            native_tunnel: true,
            waypoint: Some(waypoint.clone()),
            network_gateway: Some(waypoint.clone()),
            workload_type: WorkloadKind::Job,
            hostname: "a.example.com".into(),
            status: WorkloadStatus::Unhealthy,
            network_mode: NetworkMode::HostNetwork,
            locality: Locality {
                zone: "z".into(),
                ..Locality::default()
            },
            services: [(NamespacedHostname::new("default", "a"), PortMap::new())].into(),
            application_tunnel: Some(AppTunnel {
                protocol: AppTunnelProtocol::Proxy,
                port: Some(15088),
            }),
            endpoint_waypoint: Some(EndpointWaypoint {
                waypoint,
                identities: vec![Identity::new("td", "default", "waypoint")],
                enforce: true,
                refuse: true,
                for_services: true,
                rules: Some(vec![
                    WaypointRule::default(),
                    WaypointRule {
                        ports: vec![80],
                        principals: vec![StringMatch::Presence],
                        namespaces: vec![StringMatch::Exact("a".into())],
                    },
                ]),
            }),
            ..Workload::default()
        });
        let printed = serde_json::to_value(&workload).unwrap();
        assert_eq!(printed["applicationTunnel"]["protocol"], "PROXY");
        assert_eq!(printed["workloadType"], "job");
        assert_eq!(
            printed["endpointWaypoint"]["identities"][0],
            "spiffe://td/ns/default/sa/waypoint"
        );
        let read: Json<Workload> = serde_json::from_value(printed).unwrap();
        assert_eq!(read, workload);
    }

    #[test]
    fn unknown_fields_are_refused() {
        let unknown = r#"{"uid":"a","colour":"red"}"#;
        let error = serde_json::from_str::<Json<Workload>>(unknown).unwrap_err();
        assert!(error.to_string().contains("colour"), "{error}");
    }
}
