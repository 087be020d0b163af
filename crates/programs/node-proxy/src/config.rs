//! Configuration from environment variables: those that Istio's node proxy reads, and Ambit's own with the prefix
//! `AMBIT_`.
//!
//! Every error names its variable. Deviations from Istio are variables with the prefix `AMBIT_`.

use std::{net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use ambit_bpf::Pins;
use ambit_certificates::SpiffeSocket;
use ambit_hbone::Settings;
use ambit_model::{ArcStr, Identity, PROXY_MARK, PodName};
use ambit_proxy::{
    SetupLimits,
    control_plane::ControlPlaneService,
    environment::{self, SettingError, control_plane_service, first_set},
    flow_listener::FlowAccess,
};
use ambit_rt::{Env, EnvError, drain::termination_deadline};
use ambit_sys::socket::{Transparent, Tuning};
use serde::Serialize;

mod mesh;
#[cfg(test)]
mod tests;

pub use mesh::MeshConfigError;

/// Error of the node proxy's configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The value of a variable is invalid.
    #[error(transparent)]
    Variable(#[from] EnvError),
    /// `PROXY_CONFIG` or the mesh configuration file is invalid.
    #[error(transparent)]
    Mesh(#[from] MeshConfigError),
    /// Two variables are set that exclude each other.
    #[error("{0} and {1} cannot both be set")]
    MutuallyExclusive(&'static str, &'static str),
    /// `PROXY_MODE` is the dedicated mode, which is not supported.
    #[error("PROXY_MODE=dedicated is not supported: only the shared mode is")]
    DedicatedMode,
    /// A setting that node proxies and waypoints share is invalid.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// On-demand xDS is combined with DNS capture, which resolves names among all services.
    #[error(
        "XDS_ON_DEMAND=true needs ISTIO_META_DNS_CAPTURE=false: captured DNS questions are answered \
         from all services, which are not known on demand"
    )]
    OnDemandDns,
    /// `FAKE_CA` is set: certificates that no CA signed are not supported.
    #[error(
        "FAKE_CA=true is not supported: nobody could verify such certificates; set CA_ADDRESS, or use \
         `ambit lab` to try things out"
    )]
    FakeCa,
    /// All functions of the proxy are disabled.
    #[error("ENABLE_PROXY=false leaves nothing to run")]
    NothingToRun,
}

/// Source of the mesh state without a control plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum LocalXds {
    /// Path of a local file (`LOCAL_XDS_PATH`).
    Path(PathBuf),
    /// Mesh state as text (`LOCAL_XDS`).
    Text(String),
}

/// Configuration of the node proxy, read from environment variables.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Config {
    /// `POD_NAME`, `POD_NAMESPACE`, `SERVICE_ACCOUNT`: name of the proxy's own pod.
    #[serde(flatten, with = "ambit_mesh_json::PodNameForm")]
    pub own_pod: PodName,
    /// `NODE_NAME`: name of the node.
    pub local_node: ArcStr,
    /// `INSTANCE_IP`: address of the proxy's own pod.
    pub local_ip: Option<IpAddr>,
    /// `HOST_IP`: the node's address, from which kubelet may call pods.
    pub node_ip: Option<IpAddr>,
    /// `TRUST_DOMAIN`: trust domain of the mesh.
    pub trust_domain: ArcStr,
    /// `NETWORK`: network of the node.
    pub network: ArcStr,
    /// `CLUSTER_ID` or `ISTIO_META_CLUSTER_ID`: name of the node's cluster.
    pub cluster_id: ArcStr,
    /// `CLUSTER_DOMAIN`: DNS domain of the cluster.
    pub cluster_domain: ArcStr,
    /// `PREFERED_SERVICE_NAMESPACE`: namespace whose service is preferred if several have the same host name.
    pub preferred_service_namespace: Option<ArcStr>,
    /// `INPOD_UDS`: path of the node agent's ZDS socket.
    pub inpod_uds: PathBuf,
    /// `INPOD_PORT_REUSE`: whether pods' listeners use `SO_REUSEPORT`.
    pub inpod_port_reuse: bool,
    /// `PACKET_MARK`: mark of the proxy's own packets, which the redirection rules exempt.
    pub packet_mark: Option<u32>,
    /// `IPV6_ENABLED`: whether pods' listeners accept IPv6.
    pub ipv6_enabled: bool,
    /// `ENABLE_ORIG_SRC`: whether the proxy connects to applications from the client's address.
    #[serde(skip)]
    pub original_source: Transparent,
    /// `XDS_ADDRESS` and related variables: address of the control plane.
    pub xds: ControlPlaneService,
    /// `CA_ADDRESS` and related variables: address of the CA.
    pub ca: ControlPlaneService,
    /// `AMBIT_SPIRE_ADMIN_SOCKET`: admin socket (`unix:///PATH`) of SPIRE's agent, which issues the certificates of the
    /// node's pods instead of the CA, by the Delegated Identity API.
    pub spire_admin_socket: Option<SpiffeSocket>,
    /// `AUTH_TOKEN`: path of the token for control plane and CA, or the token itself. Never dumped.
    #[serde(skip)]
    pub auth_token: Option<String>,
    /// `XDS_ON_DEMAND`: whether records are subscribed to one by one as connections need them.
    pub xds_on_demand: bool,
    /// `ISTIO_META_DNS_CAPTURE`: whether captured DNS queries for mesh names are answered by the proxy, instead of
    /// forwarding all queries. Enabled unless set to a value other than `true`.
    pub dns_proxy: bool,
    /// `LOCAL_XDS_PATH` or `LOCAL_XDS`: source of the mesh state instead of the control plane.
    pub local_xds: Option<LocalXds>,
    /// `SECRET_TTL`: lifetime that is requested for certificates.
    pub secret_ttl: Duration,
    /// `KEEPALIVE_*`, `USER_TIMEOUT_ENABLED`: TCP socket options of connections.
    #[serde(skip)]
    pub tuning: Tuning,
    /// `HTTP2_*`, `POOL_*`: HTTP/2 settings and connection pooling of HBONE.
    #[serde(skip)]
    pub http2: Arc<Settings>,
    /// `CONNECTION_TERMINATION_DEADLINE`, `TERMINATION_GRACE_PERIOD_SECONDS`: maximum drain time when the process
    /// terminates.
    pub self_termination_deadline: Duration,
    /// `AMBIT_UNENROLLED_DRAIN`: maximum time for which connections continue after their pod has left the mesh or was
    /// deleted. Unset: until they end.
    pub unenrolled_drain: Option<Duration>,
    /// `AMBIT_NETNS_DIR`: directory in which the container runtime binds the pods' network
    /// namespaces.
    pub netns_dir: PathBuf,
    /// `AMBIT_BPF_DIR`: directory of the agent's BPF programs, on a bpffs.
    #[serde(skip)]
    pub bpf_pins: Pins,
    /// `AMBIT_CLOSE_CLEAR_CONNECTIONS`: whether pre-capture connections are closed, instead of continuing in plaintext
    /// until they end.
    pub close_clear_connections: bool,
    /// `AMBIT_MAX_SETUPS_PER_SOURCE`, `AMBIT_MAX_SETUPS_PER_POD`: maximum connections to one pod whose setup
    /// (handshake, authorization, connect) is in flight, from one source and in total.
    pub setup_limits: SetupLimits,
    /// Number of worker threads, which carry connections.
    pub num_worker_threads: usize,
    /// `LOCALHOST_APP_TUNNEL`: whether tunnels to an application that listens on loopback only are allowed.
    pub localhost_app_tunnel: bool,
    /// `ENABLE_RESPONSE_BAGGAGE`: whether responses to CONNECT carry the pod's `baggage` header.
    pub response_baggage: bool,
    /// `AUTHZ_POLICY_INFO_LOGGING`: whether each policy decision is logged with the deciding policy.
    pub authz_policy_info_logging: bool,
    /// `AMBIT_MISSING_POLICY_ALLOW`: whether a reference of a workload to an unknown policy is ignored (Istio's
    /// behaviour), instead of rejecting the workload's connections.
    pub missing_policy_allow: bool,
    /// `AMBIT_MISSING_POLICY_GRACE`: time for which open connections continue after their workload
    /// has named an unknown policy; new ones are rejected at once.
    pub missing_policy_grace: Duration,
    /// `AMBIT_WAYPOINT_GRACE`: maximum time for which open connections that bypass the workload's waypoint continue
    /// once all connections must pass it. Unset: until they end, if no layer 7 rule could apply to them.
    pub waypoint_grace: Option<Duration>,
    /// `AMBIT_KEEP_LAST_GOOD_POLICY`: whether a policy that this version cannot fully evaluate is replaced by its last
    /// good version, instead of denying all.
    pub keep_last_good_policy: bool,
    /// `AMBIT_OUTBOUND_TRAFFIC_POLICY`, as `outboundTrafficPolicy.mode` of MeshConfig: `REGISTRY_ONLY` rejects captured
    /// pods' connections to addresses of no service, workload or ServiceEntry. `ALLOW_ANY` unless set.
    pub registry_only: bool,
    /// `AMBIT_EGRESS_ALLOWED_ADDRESSES`: addresses that pods' connections may be redirected to although
    /// [`ambit_egress`] forbids them.
    pub allowed_addresses: Vec<ipnet::IpNet>,
    /// `CRL_PATH`: file of certificate revocation lists.
    pub crl_path: Option<PathBuf>,
    /// `AMBIT_TRUST_DOMAINS_PATH`: file of further trust domains, whose peers are accepted besides the mesh's own.
    pub trust_domains_path: Option<PathBuf>,
    /// `AMBIT_METRICS_PRINCIPALS`: whether metrics have the principals of source and destination as labels.
    pub metrics_principals: bool,
    /// `AMBIT_FLOW_READER`: SPIFFE ID of the control plane, which may read flow events on behalf of users. Unset:
    /// nobody may.
    #[serde(skip)]
    pub flow_reader: Option<Identity>,
    /// Port of the admin server, on the loopback address.
    pub admin_port: u16,
    /// Port of the metrics server.
    pub stats_port: u16,
    /// Port of the readiness server.
    pub readiness_port: u16,
    /// Metadata of the xDS node, sent to the control plane.
    #[serde(skip)]
    pub proxy_metadata: Vec<(String, String)>,
}

impl Config {
    /// Reads the environment and the optional mesh configuration file.
    ///
    /// # Errors
    ///
    /// When a value is invalid; the error names it.
    pub fn from_env(env: &Env) -> Result<Self, ConfigError> {
        let mesh = mesh::load_proxy_config(env)?;
        check_mode(env)?;
        let text = |name: &str| ArcStr::from(env.get(name).unwrap_or_default());
        let grace = env.parse("TERMINATION_GRACE_PERIOD_SECONDS", "a number of seconds")?;
        let local_xds = match (env.get("LOCAL_XDS_PATH"), env.get("LOCAL_XDS")) {
            (Some(_), Some(_)) => {
                return Err(ConfigError::MutuallyExclusive(
                    "LOCAL_XDS_PATH",
                    "LOCAL_XDS",
                ));
            }
            (Some(path), None) => Some(LocalXds::Path(path.into())),
            (None, Some(text)) => Some(LocalXds::Text(text.to_owned())),
            (None, None) => None,
        };
        Ok(Self {
            own_pod: PodName {
                name: text("POD_NAME"),
                namespace: text("POD_NAMESPACE"),
                service_account: text("SERVICE_ACCOUNT"),
            },
            local_node: text("NODE_NAME"),
            local_ip: env.parse("INSTANCE_IP", "an IP address")?,
            node_ip: env.parse("HOST_IP", "an IP address")?,
            trust_domain: env.text("TRUST_DOMAIN", "cluster.local").into(),
            network: text("NETWORK"),
            cluster_id: first_set(env, &["ISTIO_META_CLUSTER_ID", "CLUSTER_ID"], "Kubernetes"),
            cluster_domain: env.text("CLUSTER_DOMAIN", "cluster.local").into(),
            preferred_service_namespace: env
                .get("PREFERED_SERVICE_NAMESPACE")
                .filter(|text| !text.is_empty())
                .map(Into::into),
            inpod_uds: inpod_uds(env),
            inpod_port_reuse: env.flag("INPOD_PORT_REUSE")?.unwrap_or(true),
            packet_mark: Some(env.parse("PACKET_MARK", "a number")?.unwrap_or(PROXY_MARK)),
            ipv6_enabled: env.flag("IPV6_ENABLED")?.unwrap_or(true),
            original_source: match env.flag("ENABLE_ORIG_SRC")? {
                None => Transparent::BestEffort,
                Some(true) => Transparent::Required,
                Some(false) => Transparent::Off,
            },
            xds: control_plane_service(env, "XDS", mesh.discovery_address.as_deref())?,
            ca: control_plane_service(env, "CA", mesh.discovery_address.as_deref())?,
            spire_admin_socket: env.parse("AMBIT_SPIRE_ADMIN_SOCKET", "unix:///PATH")?,
            auth_token: environment::auth_token(env),
            xds_on_demand: on_demand(env)?,
            dns_proxy: dns_proxy(env),
            local_xds,
            secret_ttl: env
                .duration("SECRET_TTL")?
                .unwrap_or(Duration::from_secs(24 * 3600)),
            tuning: environment::tcp_tuning(env)?,
            http2: Arc::new(environment::http2_settings(env)?),
            self_termination_deadline: termination_deadline(
                env.duration("CONNECTION_TERMINATION_DEADLINE")?,
                grace,
            ),
            unenrolled_drain: env.duration("AMBIT_UNENROLLED_DRAIN")?,
            netns_dir: env.text("AMBIT_NETNS_DIR", "/var/run/netns").into(),
            bpf_pins: Pins::at(env.text("AMBIT_BPF_DIR", Pins::ROOT)),
            close_clear_connections: env.flag("AMBIT_CLOSE_CLEAR_CONNECTIONS")?.unwrap_or(false),
            setup_limits: environment::setup_limits(env)?,
            num_worker_threads: environment::threads::worker_count(env, mesh.concurrency)?,
            localhost_app_tunnel: env.flag("LOCALHOST_APP_TUNNEL")?.unwrap_or(true),
            response_baggage: env.flag("ENABLE_RESPONSE_BAGGAGE")?.unwrap_or(true),
            authz_policy_info_logging: env.flag("AUTHZ_POLICY_INFO_LOGGING")?.unwrap_or(false),
            missing_policy_allow: env.flag("AMBIT_MISSING_POLICY_ALLOW")?.unwrap_or(false),
            missing_policy_grace: env
                .duration("AMBIT_MISSING_POLICY_GRACE")?
                .unwrap_or(Duration::from_secs(10)),
            waypoint_grace: env.duration("AMBIT_WAYPOINT_GRACE")?,
            keep_last_good_policy: env.flag("AMBIT_KEEP_LAST_GOOD_POLICY")?.unwrap_or(false),
            registry_only: registry_only(env)?,
            allowed_addresses: allowed_addresses(env)?,
            crl_path: environment::path_variable(env, "CRL_PATH"),
            trust_domains_path: environment::path_variable(env, "AMBIT_TRUST_DOMAINS_PATH"),
            metrics_principals: env.flag("AMBIT_METRICS_PRINCIPALS")?.unwrap_or(true),
            flow_reader: env.parse("AMBIT_FLOW_READER", "a SPIFFE identity")?,
            admin_port: mesh.proxy_admin_port.unwrap_or(15000),
            stats_port: mesh.stats_port.unwrap_or(15020),
            readiness_port: 15021,
            proxy_metadata: mesh.proxy_metadata.into_iter().collect(),
        })
    }

    /// Returns the access of the control plane to flow events; `None` if it has none.
    pub fn flow_access(&self) -> Option<FlowAccess> {
        Some(FlowAccess {
            proxy_identity: Identity::new(
                self.trust_domain.clone(),
                self.own_pod.namespace.clone(),
                self.own_pod.service_account.clone(),
            ),
            reader_identity: self.flow_reader.clone()?,
        })
    }
}

/// Returns the path of the node agent's ZDS socket (`INPOD_UDS`).
pub(crate) fn inpod_uds(env: &Env) -> PathBuf {
    env.text("INPOD_UDS", "/var/run/ztunnel/ztunnel.sock")
        .into()
}

fn check_mode(env: &Env) -> Result<(), ConfigError> {
    match env.get("PROXY_MODE") {
        None | Some("" | "shared") => {}
        Some("dedicated") => return Err(ConfigError::DedicatedMode),
        Some(other) => {
            return Err(ConfigError::Variable(EnvError {
                variable: "PROXY_MODE".to_owned(),
                value: other.to_owned(),
                expected: "shared or dedicated",
            }));
        }
    }
    if env.flag("FAKE_CA")? == Some(true) {
        return Err(ConfigError::FakeCa);
    }
    if env.flag("ENABLE_PROXY")? == Some(false) {
        return Err(ConfigError::NothingToRun);
    }
    Ok(())
}

fn registry_only(env: &Env) -> Result<bool, EnvError> {
    const NAME: &str = "AMBIT_OUTBOUND_TRAFFIC_POLICY";
    match env.get(NAME) {
        None | Some("" | "ALLOW_ANY") => Ok(false),
        Some("REGISTRY_ONLY") => Ok(true),
        Some(other) => Err(EnvError {
            variable: NAME.to_owned(),
            value: other.to_owned(),
            expected: "ALLOW_ANY or REGISTRY_ONLY",
        }),
    }
}

fn allowed_addresses(env: &Env) -> Result<Vec<ipnet::IpNet>, EnvError> {
    const NAME: &str = "AMBIT_EGRESS_ALLOWED_ADDRESSES";
    let text = env.get(NAME).unwrap_or_default();
    ambit_egress::parse_nets(text).map_err(|_| EnvError {
        variable: NAME.to_owned(),
        value: text.to_owned(),
        expected: "IP addresses and prefixes, with commas between them",
    })
}

fn dns_proxy(env: &Env) -> bool {
    env.get("ISTIO_META_DNS_CAPTURE")
        .is_none_or(|text| text == "true")
}

fn on_demand(env: &Env) -> Result<bool, ConfigError> {
    let on_demand = env.flag("XDS_ON_DEMAND")?.unwrap_or(false);
    if on_demand && dns_proxy(env) {
        return Err(ConfigError::OnDemandDns);
    }
    Ok(on_demand)
}
