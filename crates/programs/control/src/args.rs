//! Command line arguments and environment variables.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use ambit_derive::{
    ReferenceGrants, ServicePolicyScope, WaypointAttachment, WaypointBinding, WaypointMissing,
};
use ambit_k8s_api::{
    enablement::{Enablement, EnablementSelector, SelectorError},
    revisions,
};
use ambit_model::PathNormalization;
use clap::{Parser, ValueEnum};

/// The control plane of the mesh: workload discovery, policies and certificates.
#[derive(Clone, Debug, Parser)]
#[command(name = "ambit-control", version, about)]
pub struct Args {
    /// Directory of Kubernetes manifests, which is followed; later directories are merged over
    /// earlier ones. Without any, objects come from the Kubernetes API.
    #[arg(long, env = "AMBIT_MANIFESTS", value_delimiter = ':')]
    pub manifests: Vec<PathBuf>,
    /// Kubeconfig for access from outside of a cluster; KUBECONFIG if not set.
    #[arg(long, conflicts_with = "manifests")]
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the control plane, of its lease and of the Secret of its root; --root-namespace
    /// if not set.
    #[arg(long, env = "POD_NAMESPACE")]
    pub namespace: Option<String>,
    /// Name of this replica, which must be unique.
    #[arg(long, env = "POD_NAME")]
    pub name: Option<String>,
    /// Address of xDS and the CSR API, over TLS.
    #[arg(long, default_value = "0.0.0.0:15012", env = "AMBIT_LISTEN_XDS")]
    pub listen_xds: SocketAddr,
    /// Address of metrics, readiness and debug pages.
    #[arg(long, default_value = "0.0.0.0:15014", env = "AMBIT_LISTEN_MONITORING")]
    pub listen_monitoring: SocketAddr,
    /// Further address of readiness and debug pages: port 8080 of every address on Kubernetes, none
    /// with --manifests.
    #[arg(long, env = "AMBIT_LISTEN_HTTP")]
    pub listen_http: Option<SocketAddr>,
    /// Address where users read flow events through the API server's proxy, over TLS; none if not
    /// set. Only on Kubernetes.
    #[arg(long, env = "AMBIT_LISTEN_FLOWS", conflicts_with = "manifests")]
    pub listen_flows: Option<SocketAddr>,
    /// Interval in seconds of authorizing readers of flow events again.
    #[arg(long, default_value_t = 60, env = "AMBIT_FLOWS_CHECK_SECONDS")]
    pub flows_check_seconds: u64,
    /// Service account of this control plane, in its own namespace, which proxies let read flow
    /// events.
    #[arg(long, default_value = "ambit-control", env = "SERVICE_ACCOUNT")]
    pub service_account: String,
    /// Trust domain of the mesh's identities.
    #[arg(long, default_value = "cluster.local", env = "TRUST_DOMAIN")]
    pub trust_domain: String,
    /// Name of this cluster.
    #[arg(long, default_value = "Kubernetes", env = "CLUSTER_ID")]
    pub cluster_id: String,
    /// DNS domain of Kubernetes Services.
    #[arg(long, default_value = "cluster.local", env = "CLUSTER_DOMAIN")]
    pub cluster_domain: String,
    /// Namespace whose policies apply to the whole mesh.
    #[arg(long, default_value = "istio-system", env = "ROOT_NAMESPACE")]
    pub root_namespace: String,
    /// Directory with ca-cert.pem, ca-key.pem, cert-chain.pem and root-cert.pem, or with tls.crt,
    /// tls.key and ca.crt, which is followed. If it is empty, a root is generated: there, or on
    /// Kubernetes in the Secret istio-ca-secret.
    #[arg(long, env = "ROOT_CA_DIR")]
    pub ca_dir: Option<PathBuf>,
    /// File to write the root certificates to, for clients.
    #[arg(long, env = "AMBIT_ROOT_CERT_OUT")]
    pub root_cert_out: Option<PathBuf>,
    /// File to write the accepted trust domains to, for clients; it does not exist while only the
    /// mesh's own one is accepted.
    #[arg(long, env = "AMBIT_TRUST_DOMAINS_OUT")]
    pub trust_domains_out: Option<PathBuf>,
    /// Further DNS name or IP address of the serving certificate.
    #[arg(long, env = "AMBIT_SERVER_SAN", value_delimiter = ',')]
    pub server_san: Vec<String>,
    /// Public keys that sign service account tokens: PEM or JWKS. If not set, the Kubernetes API
    /// reviews tokens; with --manifests every caller is rejected.
    #[arg(long, env = "AMBIT_TOKEN_KEYS")]
    pub token_keys: Option<PathBuf>,
    /// Audience that tokens must name.
    #[arg(long, default_value = "istio-ca", env = "TOKEN_AUDIENCES")]
    pub token_audience: String,
    /// Service accounts of node proxies, as namespace/name, separated by commas.
    #[arg(
        long,
        default_value = "istio-system/ztunnel",
        env = "CA_TRUSTED_NODE_ACCOUNTS"
    )]
    pub trusted_node_accounts: String,
    /// Maximum lifetime of workload certificates, such as 24h. Longer requests are reduced to it.
    #[arg(long, default_value = "24h", value_parser = parse_ttl, env = "MAX_WORKLOAD_CERT_TTL")]
    pub max_workload_cert_ttl: Duration,
    /// Namespaces that the agents exclude from the mesh, whatever their labels: the agents'
    /// setting.
    #[arg(long, env = "EXCLUDE_NAMESPACES", value_delimiter = ',')]
    pub exclude_namespaces: Vec<String>,
    /// Selectors of pods that the agents capture: the agents' setting, a YAML list of {podSelector,
    /// namespaceSelector}.
    #[arg(long, env = "AMBIENT_ENABLEMENT_SELECTOR", default_value = "")]
    pub enablement_selector: String,
    /// Maximum connection age in seconds, with 10 % jitter, so that clients spread over all
    /// replicas.
    #[arg(long, default_value_t = 1800, env = "AMBIT_MAX_CONNECTION_SECONDS")]
    pub max_connection_seconds: u64,
    /// Maximum number of new xDS streams per second, which limits the load after a restart.
    #[arg(long, default_value_t = 100, env = "PILOT_MAX_REQUESTS_PER_SECOND")]
    pub streams_per_second: u32,
    /// Remove the taint --startup-taint from nodes whose agent and node proxy are ready.
    #[arg(long, env = "PILOT_ENABLE_NODE_UNTAINT_CONTROLLERS")]
    pub untaint_nodes: bool,
    /// Key of the taint that nodes register with, so that no pod starts before the mesh can capture it.
    #[arg(
        long,
        default_value = "cni.istio.io/not-ready",
        env = "PILOT_NODE_UNTAINT_CONTROLLERS_TAINT_NAME"
    )]
    pub startup_taint: String,
    /// Replace killed pods of agents and node proxies, instead of waiting for kubelet's restart
    /// back-off.
    #[arg(long, env = "AMBIT_RESET_RESTART_BACKOFF")]
    pub reset_restart_backoff: bool,
    /// Settings of waypoints on Kubernetes, as JSON: image, replicas, resources and so on. If not
    /// set, waypoints are not deployed.
    #[arg(long, env = "AMBIT_WAYPOINTS")]
    pub waypoints: Option<String>,
    /// Revision of this control plane: it manages the Gateways whose label istio.io/rev, or whose
    /// namespace's, names it or one of its tags. Its Service is istiod-REVISION, and its MeshConfig
    /// is in istio-REVISION.
    #[arg(long, default_value = revisions::DEFAULT_REVISION, env = "REVISION")]
    pub revision: String,
    /// Let any service account read the whole mesh over xDS, as Istio does, instead of only node
    /// proxies.
    #[arg(long, env = "AMBIT_XDS_ANY_ACCOUNT")]
    pub xds_any_account: bool,
    /// Send policies annotated istio.io/dry-run to node proxies; node proxies that do not support
    /// dry runs enforce them.
    #[arg(long, env = "AMBIENT_ENABLE_DRY_RUN_AUTHORIZATION_POLICY")]
    pub dry_run_policies: bool,
    /// Labels that attach pods and services to waypoints.
    #[arg(long, value_enum, default_value_t, env = "AMBIT_WAYPOINT_ATTACHMENT")]
    pub waypoint_attachment: AttachmentMode,
    /// Callers that are routed through the waypoints of workloads; `istio` only with
    /// `--waypoint-attachment labels`.
    #[arg(long, value_enum, default_value_t, env = "AMBIT_WORKLOAD_WAYPOINTS")]
    pub workload_waypoints: WorkloadWaypoints,
    /// Treatment of connections whose waypoint cannot be found.
    #[arg(long, value_enum, default_value_t, env = "AMBIT_WAYPOINT_MISSING")]
    pub waypoint_missing: MissingWaypointAction,
    /// Time from which a waypoint serves the objects that name it.
    #[arg(long, value_enum, default_value_t, env = "AMBIT_WAYPOINT_BINDING")]
    pub waypoint_binding: BindingMode,
    /// Treatment of connections to addresses outside of the mesh, equal to the node proxies' setting.
    #[arg(
        long,
        value_enum,
        ignore_case = true,
        default_value_t,
        env = "AMBIT_OUTBOUND_TRAFFIC_POLICY"
    )]
    pub outbound_traffic_policy: OutboundPolicy,
    /// Normalization of paths at waypoints, before policies and routes match them.
    #[arg(
        long,
        value_enum,
        ignore_case = true,
        default_value_t,
        env = "AMBIT_PATH_NORMALIZATION"
    )]
    pub path_normalization: NormalizationMode,
    /// Number of trusted proxies in front of the mesh that append to x-forwarded-for.
    #[arg(long, default_value_t = 0, env = "AMBIT_TRUSTED_PROXIES")]
    pub trusted_proxies: u32,
    /// Refresh interval of token issuers' key sets in seconds, with 10 % jitter.
    #[arg(long, default_value_t = 1200, env = "AMBIT_JWKS_REFRESH_SECONDS")]
    pub jwks_refresh_seconds: u64,
    /// Follow Secrets with the label ambit.io/image-pull=true: waypoints get those that WasmPlugins
    /// name, to pull their modules.
    #[arg(long, env = "AMBIT_IMAGE_PULL_SECRETS")]
    pub image_pull_secrets: bool,
    /// Comma-separated addresses and prefixes that the control plane and waypoints may call on
    /// behalf of objects, although they are loopback, link-local, a metadata service's, a node's or
    /// the API server's.
    #[arg(long, default_value = "", env = "AMBIT_EGRESS_ALLOWED_ADDRESSES")]
    pub egress_allowed_addresses: String,
    /// Whether routes need a ReferenceGrant for backends in other namespaces.
    #[arg(long, value_enum, default_value_t, env = "AMBIT_REFERENCE_GRANTS")]
    pub reference_grants: GrantsMode,
    /// Requests to which objects attached to Services apply: those to the Services and to their
    /// pods, or, as in Istio, only those to the Services.
    #[arg(long, value_enum, default_value_t, env = "AMBIT_SERVICE_POLICY_SCOPE")]
    pub service_policy_scope: PolicyScope,
}

/// Values of [`Args::service_policy_scope`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PolicyScope {
    /// Requests to Services and to their pods.
    #[default]
    Pods,
    /// Requests to Services alone.
    Istio,
}

fn parse_ttl(text: &str) -> Result<Duration, String> {
    let ttl = ambit_rt::env::parse_duration(text).filter(|ttl| *ttl >= Duration::from_secs(60));
    ttl.ok_or_else(|| "a duration of at least a minute is expected, such as 24h".to_owned())
}

/// Values of [`Args::reference_grants`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum GrantsMode {
    /// References need a grant.
    #[default]
    Required,
    /// References need no grant, as in Istio.
    Ignored,
}

/// Values of [`Args::workload_waypoints`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum WorkloadWaypoints {
    /// All callers, by any address.
    #[default]
    Enforced,
    /// Captured callers that dial the workload's own address, as in Istio.
    Istio,
}

impl From<WorkloadWaypoints> for ambit_derive::WorkloadWaypoints {
    fn from(setting: WorkloadWaypoints) -> Self {
        match setting {
            WorkloadWaypoints::Enforced => Self::AllClients,
            WorkloadWaypoints::Istio => Self::CapturedClients,
        }
    }
}

/// Values of [`Args::waypoint_attachment`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AttachmentMode {
    /// Labels; objects without a label are served by the waypoint of their service account or namespace.
    #[default]
    Seed,
    /// Labels only, as in Istio.
    Labels,
}

/// Values of [`Args::waypoint_missing`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum MissingWaypointAction {
    /// Connections are rejected.
    #[default]
    Refuse,
    /// Connections pass without a waypoint, as in Istio.
    Allow,
}

/// Values of [`Args::waypoint_binding`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum BindingMode {
    /// Once it has been ready, or policies are attached to it or to objects that name it.
    #[default]
    Ready,
    /// At once, as in Istio: until the waypoint is ready, connections are rejected.
    Strict,
}

/// Values of [`Args::outbound_traffic_policy`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OutboundPolicy {
    /// Connections leave the mesh.
    #[default]
    #[value(alias = "ALLOW_ANY")]
    AllowAny,
    /// Connections are refused.
    #[value(alias = "REGISTRY_ONLY")]
    RegistryOnly,
}

/// Values of [`Args::path_normalization`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum NormalizationMode {
    /// Not at all.
    None,
    /// As RFC 3986 has it.
    #[default]
    Base,
    /// Adjacent slashes are merged, too.
    #[value(alias = "MERGE_SLASHES")]
    MergeSlashes,
    /// Percent-encoded slashes are decoded first.
    #[value(alias = "DECODE_AND_MERGE_SLASHES")]
    DecodeAndMergeSlashes,
}

impl From<AttachmentMode> for WaypointAttachment {
    fn from(from: AttachmentMode) -> Self {
        match from {
            AttachmentMode::Seed => Self::LabelsAndGateways,
            AttachmentMode::Labels => Self::LabelsOnly,
        }
    }
}

impl From<BindingMode> for WaypointBinding {
    fn from(binding: BindingMode) -> Self {
        match binding {
            BindingMode::Ready => Self::WhenReady,
            BindingMode::Strict => Self::Strict,
        }
    }
}

impl From<MissingWaypointAction> for WaypointMissing {
    fn from(from: MissingWaypointAction) -> Self {
        match from {
            MissingWaypointAction::Refuse => Self::RefuseConnections,
            MissingWaypointAction::Allow => Self::BypassWaypoint,
        }
    }
}

impl From<PolicyScope> for ServicePolicyScope {
    fn from(from: PolicyScope) -> Self {
        match from {
            PolicyScope::Pods => Self::ServiceAndPods,
            PolicyScope::Istio => Self::ServiceOnly,
        }
    }
}

impl From<GrantsMode> for ReferenceGrants {
    fn from(from: GrantsMode) -> Self {
        match from {
            GrantsMode::Required => Self::Required,
            GrantsMode::Ignored => Self::Ignored,
        }
    }
}

impl From<NormalizationMode> for PathNormalization {
    fn from(from: NormalizationMode) -> Self {
        match from {
            NormalizationMode::None => Self::None,
            NormalizationMode::Base => Self::Base,
            NormalizationMode::MergeSlashes => Self::MergeSlashes,
            NormalizationMode::DecodeAndMergeSlashes => Self::DecodeAndMergeSlashes,
        }
    }
}

impl Args {
    /// Returns the name of the Service of this revision's control plane.
    pub fn service_name(&self) -> String {
        format!("istiod{}", revisions::name_suffix(&self.revision))
    }

    /// Returns the namespace of the control plane.
    pub fn own_namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or(&self.root_namespace)
    }

    /// Returns the rules that decide which pods belong to the mesh.
    ///
    /// # Errors
    ///
    /// When the selectors cannot be parsed.
    pub fn enablement(&self) -> Result<Enablement, SelectorError> {
        Enablement::new(
            EnablementSelector::parse_list(&self.enablement_selector)?,
            self.exclude_namespaces.iter().cloned(),
            self.own_namespace(),
        )
    }
}
