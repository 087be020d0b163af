//! Installation-wide settings of waypoints.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Settings of all waypoints of an installation, in the format that the chart writes.
///
/// Values of Kubernetes' own types are passed on unchanged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Settings {
    /// Image of the waypoint container.
    pub image: String,
    /// Image pull policy; empty leaves it to Kubernetes.
    pub image_pull_policy: String,
    /// Names of the Secrets with credentials for the registry.
    pub image_pull_secrets: Vec<String>,
    /// Command of the container; empty uses the image's own.
    pub command: Vec<String>,
    /// Number of pods of a waypoint.
    pub replicas: i32,
    /// Resource requests and limits of the container.
    pub resources: Value,
    /// Labels of the nodes that waypoints may run on.
    pub node_selector: BTreeMap<String, String>,
    /// Tolerations of the pods.
    pub tolerations: Vec<Value>,
    /// Affinity of the pods; without pod affinity, pods prefer different zones if the default spreading applies.
    pub affinity: Map<String, Value>,
    /// Topology spread constraints without selectors; empty spreads pods over nodes and zones.
    pub topology_spread_constraints: Vec<Value>,
    /// Seccomp profile of the container.
    pub seccomp_profile: Value,
    /// Maximum drain time of a terminating waypoint, in seconds; the waypoint exits earlier when no connections are
    /// left.
    pub termination_grace_period_seconds: u32,
    /// URL of the xDS server.
    pub control_address: String,
    /// URL of the CA; if empty, the control plane's URL is used.
    pub ca_address: String,
    /// Socket of SPIFFE's Workload API, which issues certificates instead of the CA.
    pub spiffe: Option<WorkloadApi>,
    /// SPIFFE ID of the client that reads flow events on behalf of users.
    pub flow_reader: Option<String>,
    /// Whether waypoints reject peer certificates that the CRLs in the ConfigMap `istio-ca-crl` revoke.
    pub peer_ca_crl: bool,
    /// Trust domain of the mesh's identities.
    pub trust_domain: String,
    /// Name of the cluster.
    pub cluster_id: String,
    /// DNS domain of the cluster's services.
    pub cluster_domain: String,
    /// Name of the network; empty in a mesh of a single network.
    pub network: String,
    /// Whether metrics have the principals of client and server as labels.
    pub metrics_principals: bool,
    /// Collector to which waypoints push their metrics and logs.
    pub open_telemetry: OpenTelemetry,
    /// Log level of waypoints.
    pub log_level: String,
    /// Whether logs are formatted as JSON.
    pub log_as_json: bool,
    /// Protocols that clients may request with the HTTP/1.1 header `Upgrade`.
    pub upgrades: Vec<String>,
    /// Additional environment variables, which override the generated ones.
    pub env: BTreeMap<String, String>,
    /// Paths of mounted files in the container.
    pub files: Files,
}

/// Export of metrics and logs to an OpenTelemetry collector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct OpenTelemetry {
    /// URL of the collector; empty for no export.
    pub endpoint: String,
    /// OTLP protocol, as in `OTEL_EXPORTER_OTLP_PROTOCOL`.
    pub protocol: String,
    /// Whether metrics are exported.
    pub metrics: bool,
    /// Whether logs are exported.
    pub logs: bool,
    /// Secret with the header lines of each export request.
    pub headers_secret: SecretKey,
}

impl Default for OpenTelemetry {
    fn default() -> Self {
        Self {
            endpoint: String::new(),
            protocol: "http/protobuf".into(),
            metrics: true,
            logs: true,
            headers_secret: SecretKey::default(),
        }
    }
}

/// Location of the SPIFFE Workload API's socket on each node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct WorkloadApi {
    /// Name of the CSI driver that mounts the directory of the socket; if empty, `host_path` is mounted.
    pub csi_driver: String,
    /// Directory of the socket on the node.
    pub host_path: String,
    /// File name of the socket.
    pub socket: String,
}

/// Key of a Secret in the namespace of each waypoint; the Secret is optional.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct SecretKey {
    /// Name of the Secret; empty for none.
    pub name: String,
    /// Key within the Secret.
    pub key: String,
}

/// Paths of mounted files in the container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Files {
    /// Path of the service account token.
    pub token: String,
    /// Path of the mesh's root certificate.
    pub root_cert: String,
    /// Path of the CRLs.
    pub crl: String,
    /// Path of the file of accepted trust domains.
    pub trust_domains: String,
}

impl Default for Files {
    fn default() -> Self {
        Self {
            token: "/var/run/secrets/tokens/istio-token".into(),
            root_cert: "/var/run/secrets/istio/root-cert.pem".into(),
            crl: "/var/run/secrets/istio/crl/ca-crl.pem".into(),
            trust_domains: "/var/run/secrets/trust-domains/trust-domains.json".into(),
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            image: "ambit/waypoint".into(),
            image_pull_policy: String::new(),
            image_pull_secrets: Vec::new(),
            command: Vec::new(),
            replicas: 2,
            resources: Value::Null,
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
            affinity: Map::new(),
            topology_spread_constraints: Vec::new(),
            seccomp_profile: serde_json::json!({"type": "RuntimeDefault"}),
            termination_grace_period_seconds: 3600,
            control_address: "https://istiod.istio-system.svc:15012".into(),
            ca_address: String::new(),
            spiffe: None,
            flow_reader: None,
            peer_ca_crl: false,
            trust_domain: "cluster.local".into(),
            cluster_id: "Kubernetes".into(),
            cluster_domain: "cluster.local".into(),
            network: String::new(),
            metrics_principals: true,
            open_telemetry: OpenTelemetry::default(),
            log_level: "info".into(),
            log_as_json: false,
            upgrades: vec!["websocket".into()],
            env: BTreeMap::new(),
            files: Files::default(),
        }
    }
}
