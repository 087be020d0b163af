//! A workload: one endpoint that can be a source or a destination, usually a pod.

use std::{collections::BTreeMap, fmt, net::IpAddr};

use arcstr::ArcStr;
use serde::{Deserialize, Serialize};

use crate::{
    DEFAULT_TRUST_DOMAIN, GatewayAddress, Identity, NamespacedHostname, PortMap, WorkloadUid,
};

/// How a workload takes connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Protocol {
    /// Plain TCP.
    #[default]
    #[serde(rename = "TCP")]
    Tcp,
    /// HTTP/2 CONNECT over mTLS on port 15008.
    #[serde(rename = "HBONE")]
    Hbone,
}

/// Whether the workload's addresses are its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NetworkMode {
    /// Its own addresses.
    #[default]
    Standard,
    /// Addresses of its node, shared with others: never looked up by address.
    HostNetwork,
}

/// Health as the control plane reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WorkloadStatus {
    /// Receives traffic.
    #[default]
    Healthy,
    /// Not ready, or going away.
    Unhealthy,
}

/// The kind of a workload's owner; for telemetry only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkloadKind {
    /// A Deployment.
    #[default]
    Deployment,
    /// A CronJob.
    Cronjob,
    /// A bare pod (what Istio's control plane always sends).
    Pod,
    /// A Job.
    Job,
}

impl WorkloadKind {
    /// The lower-case word that baggage uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deployment => "deployment",
            Self::Cronjob => "cronjob",
            Self::Pod => "pod",
            Self::Job => "job",
        }
    }
}

/// How the proxy passes a tunnelled connection to the application itself (sandwiched waypoints).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AppTunnel {
    /// The header before the connection's bytes.
    pub protocol: AppTunnelProtocol,
    /// Overrides the target port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// See [`AppTunnel`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum AppTunnelProtocol {
    /// Nothing.
    #[default]
    None,
    /// A PROXY protocol v2 header with the client's identity in TLV 0xD0.
    Proxy,
}

/// The location of a workload; empty parts are unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Locality {
    /// Cloud region.
    pub region: ArcStr,
    /// Availability zone.
    pub zone: ArcStr,
    /// Subzone.
    pub subzone: ArcStr,
}

impl Locality {
    /// True when nothing is known.
    pub fn is_empty(&self) -> bool {
        self.region.is_empty() && self.zone.is_empty() && self.subzone.is_empty()
    }
}

/// A pod as the enrolment contract (ZDS) names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodName {
    /// Pod name.
    pub name: ArcStr,
    /// Kubernetes namespace.
    pub namespace: ArcStr,
    /// Service account.
    pub service_account: ArcStr,
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// One endpoint of the mesh. Fields as WDS defines them (`istio.workload.Workload`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Workload {
    /// The xDS resource name.
    pub uid: WorkloadUid,
    /// Pod (or entry) name.
    pub name: ArcStr,
    /// Kubernetes namespace.
    pub namespace: ArcStr,
    /// Its addresses, canonical; may be empty (see `hostname` and `network_gateway`).
    pub workload_ips: Vec<IpAddr>,
    /// Network of the addresses.
    pub network: ArcStr,
    /// How it takes connections.
    pub protocol: Protocol,
    /// Whether the addresses are its own.
    pub network_mode: NetworkMode,
    /// The application terminates HBONE by itself.
    #[serde(skip_serializing_if = "is_default")]
    pub native_tunnel: bool,
    /// Trust domain of its identity.
    pub trust_domain: ArcStr,
    /// Service account of its identity.
    pub service_account: ArcStr,
    /// Waypoint for traffic addressed to the workload itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waypoint: Option<GatewayAddress>,
    /// Gateway through which another network reaches it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_gateway: Option<GatewayAddress>,
    /// Name of the owning Deployment or the like.
    pub workload_name: ArcStr,
    /// Kind of the owner.
    pub workload_type: WorkloadKind,
    /// Canonical service name, for telemetry.
    pub canonical_name: ArcStr,
    /// Canonical revision, for telemetry.
    pub canonical_revision: ArcStr,
    /// A DNS name to resolve when there are no addresses.
    #[serde(skip_serializing_if = "ArcStr::is_empty")]
    pub hostname: ArcStr,
    /// Node it runs on.
    pub node: ArcStr,
    /// Names (`namespace/name`) of the selector policies that apply to it.
    pub authorization_policies: Vec<ArcStr>,
    /// Health.
    pub status: WorkloadStatus,
    /// Cluster it belongs to.
    pub cluster_id: ArcStr,
    /// Where it runs.
    #[serde(skip_serializing_if = "Locality::is_empty")]
    pub locality: Locality,
    /// The services it is an endpoint of, with its own target ports.
    #[serde(with = "services_form")]
    pub services: BTreeMap<NamespacedHostname, PortMap>,
    /// Weight in load balancing; 0 is never picked.
    pub capacity: u32,
    /// How tunnelled connections reach the application.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub application_tunnel: Option<AppTunnel>,
    /// The waypoint that serves only this endpoint (Ambit's own extension).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint_waypoint: Option<EndpointWaypoint>,
}

/// The waypoint of one endpoint, attached by namespace or service account rather than by label.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointWaypoint {
    /// The waypoint.
    pub waypoint: GatewayAddress,
    /// The identities its pods run under.
    pub identities: Vec<Identity>,
    /// The destination sends all traffic that did not come from the waypoint through it.
    pub enforce: bool,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Default for Workload {
    fn default() -> Self {
        let empty = ArcStr::new;
        Self {
            uid: empty(),
            name: empty(),
            namespace: empty(),
            workload_ips: Vec::new(),
            network: empty(),
            protocol: Protocol::default(),
            network_mode: NetworkMode::default(),
            native_tunnel: false,
            trust_domain: arcstr::literal!("cluster.local"),
            service_account: arcstr::literal!("default"),
            waypoint: None,
            network_gateway: None,
            workload_name: empty(),
            workload_type: WorkloadKind::default(),
            canonical_name: empty(),
            canonical_revision: empty(),
            hostname: empty(),
            node: empty(),
            authorization_policies: Vec::new(),
            status: WorkloadStatus::default(),
            cluster_id: arcstr::literal!("Kubernetes"),
            locality: Locality::default(),
            services: BTreeMap::new(),
            capacity: 1,
            application_tunnel: None,
            endpoint_waypoint: None,
        }
    }
}

impl Workload {
    /// The identity in its certificate.
    pub fn identity(&self) -> Identity {
        Identity {
            trust_domain: self.trust_domain.clone(),
            namespace: self.namespace.clone(),
            service_account: self.service_account.clone(),
        }
    }

    /// Whether the trust domain is the default, which is left out on the wire.
    pub fn has_default_trust_domain(&self) -> bool {
        self.trust_domain == DEFAULT_TRUST_DOMAIN
    }
}

/// `/config_dump` prints `services` as a list of names and leaves the ports to the endpoints; local
/// files have a map of name to ports. Both forms are read.
mod services_form {
    use std::{collections::BTreeMap, fmt};

    use serde::{
        Deserializer, Serialize, Serializer,
        de::{MapAccess, SeqAccess, Visitor},
    };

    use crate::{NamespacedHostname, PortMap};

    type Services = BTreeMap<NamespacedHostname, PortMap>;

    pub(super) fn serialize<S: Serializer>(
        services: &Services,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        services.keys().collect::<Vec<_>>().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Services, D::Error> {
        deserializer.deserialize_any(Form)
    }

    /// Not an untagged enum: that would read YAML's numeric keys as something else.
    struct Form;

    impl<'de> Visitor<'de> for Form {
        type Value = Services;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of <namespace>/<hostname>, or a map of them to ports")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Services, A::Error> {
            let mut services = Services::new();
            while let Some(name) = list.next_element()? {
                services.insert(name, PortMap::new());
            }
            Ok(services)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Services, A::Error> {
            let mut services = Services::new();
            while let Some((name, ports)) = map.next_entry()? {
                services.insert(name, ports);
            }
            Ok(services)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_local_file_entry_is_read() {
        let json = r#"{"uid":"c1//Pod/default/a","name":"a","namespace":"default",
            "serviceAccount":"default","workloadIps":["127.0.0.1"],"protocol":"HBONE","node":"local",
            "network":"","services":{"default/example.com":{"80":8080}}}"#;
        let workload: Workload = serde_json::from_str(json).unwrap();
        assert_eq!(
            workload.identity().to_string(),
            "spiffe://cluster.local/ns/default/sa/default"
        );
        let ports = &workload.services[&NamespacedHostname::new("default", "example.com")];
        assert_eq!(ports[&80], 8080);
        assert_eq!(workload.capacity, 1);
    }

    #[test]
    fn unknown_fields_are_refused() {
        let error = serde_json::from_str::<Workload>(r#"{"uid":"a","colour":"red"}"#).unwrap_err();
        assert!(error.to_string().contains("colour"), "{error}");
    }
}
