//! Typed configuration of the waypoint, read once from environment variables. Some variables are common with node
//! proxies, others only configure waypoints.

use std::{net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use ambit_certificates::SpiffeSocket;
use ambit_hbone::Settings;
use ambit_model::{
    ArcStr, GatewayAddress, GatewayDestination, GatewayName, HBONE_PORT, Identity,
    NamespacedHostname, PodName,
};
use ambit_proxy::{
    SetupLimits,
    control_plane::ControlPlaneService,
    environment::{self, SettingError, control_plane_service, first_set},
    flow_listener::FlowAccess,
};
use ambit_rt::{Env, EnvError, drain::termination_deadline, limits};
use ambit_sys::socket::Tuning;
use ambit_telemetry::http::AccessLogFormat;
use ambit_tls::TlsSettings;
use ambit_wasm::Limits;
use ipnet::IpNet;
use serde::Serialize;

/// Memory limit of a process whose cgroup has none, in bytes; the chart sets the same.
const DEFAULT_MEMORY_LIMIT: u64 = 1 << 30;
/// Name of the WebSocket upgrade: allowed by default, and the only upgrade that HTTP/2 can carry (RFC 8441).
pub(crate) const WEBSOCKET: &str = "websocket";

/// Configuration of the waypoint.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Config {
    /// Pod of the waypoint (`POD_NAME`, `POD_NAMESPACE`, `SERVICE_ACCOUNT`).
    #[serde(flatten, with = "ambit_mesh_json::PodNameForm")]
    pub own: PodName,
    /// Gateway of the waypoint (`GATEWAY_NAME`), in the pod's namespace.
    #[serde(serialize_with = "displayed")]
    pub gateway: GatewayName,
    /// Node of the pod (`NODE_NAME`).
    pub node: ArcStr,
    /// Address of the pod (`INSTANCE_IP`).
    pub ip: Option<IpAddr>,
    /// Trust domain of the mesh (`TRUST_DOMAIN`).
    pub trust_domain: ArcStr,
    /// Network of the pod (`NETWORK`).
    pub network: ArcStr,
    /// Name of the cluster (`CLUSTER_ID` or `ISTIO_META_CLUSTER_ID`).
    pub cluster_id: ArcStr,
    /// Domain of the cluster (`CLUSTER_DOMAIN`).
    pub cluster_domain: ArcStr,
    /// Address and TLS of the xDS server (`XDS_ADDRESS` and companions).
    pub xds: ControlPlaneService,
    /// Address and TLS of the CA (`CA_ADDRESS` and companions).
    pub ca: ControlPlaneService,
    /// `SPIFFE_ENDPOINT_SOCKET`: socket of SPIFFE's Workload API (`unix:///PATH`), from which certificates come in
    /// place of the CA.
    pub spiffe_socket: Option<SpiffeSocket>,
    /// `AUTH_TOKEN`: a path or the token itself. Never dumped.
    #[serde(skip)]
    pub auth_token: Option<String>,
    /// Lifetime of the waypoint's certificates (`SECRET_TTL`).
    pub secret_ttl: Duration,
    /// `CRL_PATH`: certificate revocation lists.
    pub crl_path: Option<PathBuf>,
    /// `AMBIT_TRUST_DOMAINS_PATH`: file of the trust domains that are accepted besides the mesh's own.
    pub trust_domains_path: Option<PathBuf>,
    /// TCP options of connections (`KEEPALIVE_*`, `USER_TIMEOUT_ENABLED`).
    #[serde(skip)]
    pub tuning: Tuning,
    /// HTTP/2 settings of HBONE (`HTTP2_*`, `POOL_*`).
    #[serde(skip)]
    pub http2: Arc<Settings>,
    /// Maximum concurrent connection setups (`AMBIT_MAX_SETUPS_PER_SOURCE`, `AMBIT_MAX_SETUPS_PER_POD`).
    pub setup_limits: SetupLimits,
    /// Number of worker threads that serve connections.
    pub workers: usize,
    /// `CONNECTION_TERMINATION_DEADLINE`, `TERMINATION_GRACE_PERIOD_SECONDS`: time that requests have to finish during
    /// shutdown.
    pub termination_deadline: Duration,
    /// `AMBIT_WAYPOINT_LINGER`: time for which new connections are accepted during shutdown, until clients know of it.
    pub linger: Duration,
    /// `AMBIT_REQUEST_HEADERS_TIMEOUT`: timeout of the header section of an HTTP/1 request, from its first byte on.
    pub headers_timeout: Duration,
    /// `AMBIT_MAX_HEADERS`, `AMBIT_MAX_HEADER_BYTES`: limits of header sections.
    pub headers: HeaderLimits,
    /// `AMBIT_MEMORY_LIMIT`: memory limit of the process in bytes; by default that of its cgroup, or a gibibyte without
    /// one. Half of it is the budget for callers.
    pub memory_limit: usize,
    /// `AMBIT_STREAM_STALL_TIMEOUT`, `AMBIT_STREAM_IDLE_TIMEOUT`, `AMBIT_CANCEL_ON_HALF_CLOSE`: when stalled, idle and
    /// abandoned requests are cancelled.
    pub streams: StreamSettings,
    /// `AMBIT_UPGRADES`: protocols that HTTP/1.1 connections may be upgraded to, separated by commas, in lower case; or
    /// `none`.
    pub upgrades: Vec<ArcStr>,
    /// `AMBIT_ACCESS_LOG`: `text` (Istio's default line), `json`, or `off`.
    #[serde(skip)]
    pub access_log: Option<AccessLogFormat>,
    /// `AMBIT_WASM_CACHE`: cache directory of plugin modules.
    pub modules: PathBuf,
    /// `WASM_INSECURE_REGISTRIES`: registries from which plugin images are pulled without TLS, separated by commas; `*`
    /// for all.
    pub insecure_registries: Vec<String>,
    /// `AMBIT_WASM_*_TIMEOUT`: timeouts of plugins.
    pub plugins: PluginTimeouts,
    /// `AMBIT_WILDCARD_ADDRESSES`: addresses and prefixes, separated by commas, that hosts below wildcards may resolve
    /// to although they belong to the mesh or the node.
    pub allowed_hosts: Vec<IpNet>,
    /// `TLS12_ENABLED`, `COMPLIANCE_POLICY`: settings of TLS that the waypoint originates to services outside the mesh.
    #[serde(skip)]
    pub tls: TlsSettings,
    /// `AMBIT_TLS_FILES`: directory of the certificates and keys of TLS settings, with a subdirectory per namespace;
    /// rules refer to it as `/etc/certs`.
    pub tls_files: PathBuf,
    /// `AMBIT_METRICS_PRINCIPALS`: whether metrics have labels with the identities of both ends.
    pub metrics_principals: bool,
    /// Whether the pod uses IPv6 (`IPV6_ENABLED`).
    pub ipv6: bool,
    /// `AMBIT_FLOW_READER`: SPIFFE id of the control plane, which may read flow events for users. Without it no client
    /// may read them.
    #[serde(skip)]
    pub flow_reader: Option<Identity>,
    /// Port of the admin server, on the loopback address.
    pub admin_port: u16,
    /// Port of the metrics server.
    pub stats_port: u16,
    /// Port of the readiness server.
    pub readiness_port: u16,
}

/// Limits of the header sections of requests and responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HeaderLimits {
    /// Maximum number of fields of a header section (`AMBIT_MAX_HEADERS`).
    pub fields: usize,
    /// Maximum size of a header section in bytes (`AMBIT_MAX_HEADER_BYTES`).
    pub bytes: usize,
}

impl Default for HeaderLimits {
    fn default() -> Self {
        Self {
            fields: 100,
            bytes: 64 << 10,
        }
    }
}

/// Settings by which stalled and abandoned requests are cancelled.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StreamSettings {
    /// `AMBIT_STREAM_STALL_TIMEOUT`: time for which a client or an application may leave available body data unread;
    /// zero disables it. Idle streams never stall.
    pub stall_timeout: Duration,
    /// `AMBIT_STREAM_IDLE_TIMEOUT`: idle timeout of an upload before its response, and of a response of declared
    /// length; zero disables it.
    pub idle_timeout: Duration,
    /// `AMBIT_CANCEL_ON_HALF_CLOSE`: whether an HTTP/1 request is cancelled when its client closes its sending side
    /// before the response.
    pub cancel_on_half_close: bool,
}

impl Default for StreamSettings {
    fn default() -> Self {
        Self {
            stall_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(300),
            cancel_on_half_close: true,
        }
    }
}

/// Timeouts of plugins.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginTimeouts {
    /// Timeout of fetching a plugin's module (`AMBIT_WASM_FETCH_TIMEOUT`).
    pub fetch: Duration,
    /// Timeout of starting and configuring a plugin instance (`AMBIT_WASM_START_TIMEOUT`).
    pub start: Duration,
    /// Timeout of one callback of a plugin (`AMBIT_WASM_CALLBACK_TIMEOUT`).
    pub callback: Duration,
    /// Maximum time for which a plugin may pause the headers of a request or response (`AMBIT_WASM_HOLD_TIMEOUT`).
    pub hold: Duration,
}

/// Reason why the environment variables are rejected.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Invalid environment variable of a setting that all proxies have in common.
    #[error(transparent)]
    InvalidSetting(#[from] SettingError),
    /// Invalid environment variable.
    #[error(transparent)]
    InvalidVariable(#[from] EnvError),
    /// Required environment variable that is not set.
    #[error("{0} is not set: a waypoint has to know its own pod and Gateway")]
    MissingVariable(&'static str),
}

impl Config {
    /// Reads the configuration from environment variables.
    ///
    /// # Errors
    /// When a variable is missing or invalid; the error names it.
    pub fn from_env(env: &Env) -> Result<Self, ConfigError> {
        let text = |name: &str| ArcStr::from(env.get(name).unwrap_or_default());
        let needed = |name: &'static str| match env.get(name) {
            None | Some("") => Err(ConfigError::MissingVariable(name)),
            Some(text) => Ok(ArcStr::from(text)),
        };
        let own = PodName {
            name: needed("POD_NAME")?,
            namespace: needed("POD_NAMESPACE")?,
            service_account: needed("SERVICE_ACCOUNT")?,
        };
        let grace = env.parse("TERMINATION_GRACE_PERIOD_SECONDS", "a number of seconds")?;
        Ok(Self {
            gateway: GatewayName::new(own.namespace.clone(), needed("GATEWAY_NAME")?),
            own,
            node: text("NODE_NAME"),
            ip: env.parse("INSTANCE_IP", "an IP address")?,
            trust_domain: env.text("TRUST_DOMAIN", "cluster.local").into(),
            network: text("NETWORK"),
            cluster_id: first_set(env, &["ISTIO_META_CLUSTER_ID", "CLUSTER_ID"], "Kubernetes"),
            cluster_domain: env.text("CLUSTER_DOMAIN", "cluster.local").into(),
            xds: control_plane_service(env, "XDS", None)?,
            ca: control_plane_service(env, "CA", None)?,
            spiffe_socket: env.parse("SPIFFE_ENDPOINT_SOCKET", "unix:///PATH")?,
            auth_token: environment::auth_token(env),
            secret_ttl: env
                .duration("SECRET_TTL")?
                .unwrap_or(Duration::from_secs(24 * 3600)),
            crl_path: environment::path_variable(env, "CRL_PATH"),
            trust_domains_path: environment::path_variable(env, "AMBIT_TRUST_DOMAINS_PATH"),
            tuning: environment::tcp_tuning(env)?,
            http2: Arc::new(environment::http2_settings(env)?),
            setup_limits: environment::setup_limits(env)?,
            workers: environment::threads::worker_count(env, None)?,
            termination_deadline: termination_deadline(
                env.duration("CONNECTION_TERMINATION_DEADLINE")?,
                grace,
            ),
            linger: env
                .duration("AMBIT_WAYPOINT_LINGER")?
                .unwrap_or(Duration::from_secs(2)),
            headers_timeout: env
                .duration("AMBIT_REQUEST_HEADERS_TIMEOUT")?
                .unwrap_or(Duration::from_secs(60)),
            headers: header_limits(env)?,
            memory_limit: memory_limit(env)?,
            streams: stream_settings(env)?,
            upgrades: upgrades(env)?,
            access_log: access_log(env)?,
            modules: env.text("AMBIT_WASM_CACHE", "/tmp/ambit-wasm").into(),
            insecure_registries: insecure_registries(env),
            plugins: plugin_timeouts(env)?,
            allowed_hosts: allowed_hosts(env)?,
            tls: TlsSettings::from_env(env)?,
            tls_files: env.text("AMBIT_TLS_FILES", "/etc/certs").into(),
            metrics_principals: env.flag("AMBIT_METRICS_PRINCIPALS")?.unwrap_or(true),
            ipv6: env.flag("IPV6_ENABLED")?.unwrap_or(true),
            flow_reader: env.parse("AMBIT_FLOW_READER", "a SPIFFE identity")?,
            admin_port: 15000,
            stats_port: 15020,
            readiness_port: 15021,
        })
    }

    /// Returns the control plane's access to flow events, if configured.
    pub fn flow_access(&self) -> Option<FlowAccess> {
        Some(FlowAccess {
            proxy_identity: self.identity(),
            reader_identity: self.flow_reader.clone()?,
        })
    }

    /// Returns the waypoint's identity.
    pub fn identity(&self) -> Identity {
        Identity::new(
            self.trust_domain.clone(),
            self.own.namespace.clone(),
            self.own.service_account.clone(),
        )
    }

    /// Returns the address by which records refer to this waypoint.
    pub fn address(&self) -> GatewayAddress {
        let GatewayName { namespace, name } = &self.gateway;
        let hostname = arcstr::format!("{name}.{namespace}.svc.{}", self.cluster_domain);
        GatewayAddress {
            destination: GatewayDestination::Hostname(NamespacedHostname::new(
                namespace.clone(),
                hostname,
            )),
            hbone_mtls_port: HBONE_PORT,
        }
    }
}

fn plugin_timeouts(env: &Env) -> Result<PluginTimeouts, EnvError> {
    let limits = Limits::default();
    let read = |name: &str, default: Duration| {
        let read = env.duration(name)?.unwrap_or(default);
        if read.is_zero() {
            return Err(EnvError {
                variable: name.to_owned(),
                value: env.get(name).unwrap_or_default().to_owned(),
                expected: "a time that is not zero",
            });
        }
        Ok(read)
    };
    Ok(PluginTimeouts {
        fetch: read("AMBIT_WASM_FETCH_TIMEOUT", Duration::from_secs(120))?,
        start: read("AMBIT_WASM_START_TIMEOUT", limits.start_timeout)?,
        callback: read("AMBIT_WASM_CALLBACK_TIMEOUT", limits.callback_timeout)?,
        hold: read("AMBIT_WASM_HOLD_TIMEOUT", Duration::from_secs(30))?,
    })
}

fn header_limits(env: &Env) -> Result<HeaderLimits, EnvError> {
    let defaults = HeaderLimits::default();
    let read = |name: &str,
                default: usize,
                bounds: std::ops::RangeInclusive<usize>,
                expected: &'static str| {
        let read = env.parse(name, expected)?.unwrap_or(default);
        match bounds.contains(&read) {
            true => Ok(read),
            false => Err(EnvError {
                variable: name.to_owned(),
                value: read.to_string(),
                expected,
            }),
        }
    };
    let fields = "a number of header fields from 16 to 1000";
    let bytes = "a number of bytes from 8192 to 1048576";
    Ok(HeaderLimits {
        fields: read("AMBIT_MAX_HEADERS", defaults.fields, 16..=1000, fields)?,
        bytes: read(
            "AMBIT_MAX_HEADER_BYTES",
            defaults.bytes,
            8 << 10..=1 << 20,
            bytes,
        )?,
    })
}

fn stream_settings(env: &Env) -> Result<StreamSettings, EnvError> {
    let defaults = StreamSettings::default();
    Ok(StreamSettings {
        stall_timeout: env
            .duration("AMBIT_STREAM_STALL_TIMEOUT")?
            .unwrap_or(defaults.stall_timeout),
        idle_timeout: env
            .duration("AMBIT_STREAM_IDLE_TIMEOUT")?
            .unwrap_or(defaults.idle_timeout),
        cancel_on_half_close: env
            .flag("AMBIT_CANCEL_ON_HALF_CLOSE")?
            .unwrap_or(defaults.cancel_on_half_close),
    })
}

fn insecure_registries(env: &Env) -> Vec<String> {
    let all = env.get("WASM_INSECURE_REGISTRIES").unwrap_or_default();
    let all = all.split(',').map(str::trim).filter(|one| !one.is_empty());
    all.map(str::to_owned).collect()
}

fn allowed_hosts(env: &Env) -> Result<Vec<IpNet>, EnvError> {
    const NAME: &str = "AMBIT_WILDCARD_ADDRESSES";
    let all = env.get(NAME).unwrap_or_default();
    let all = all.split(',').map(str::trim).filter(|one| !one.is_empty());
    let net = |text: &str| {
        let ip = text.parse::<IpAddr>().map(IpNet::from);
        ip.or_else(|_| text.parse()).map_err(|_| EnvError {
            variable: NAME.to_owned(),
            value: text.to_owned(),
            expected: "IP addresses and prefixes, with commas between them",
        })
    };
    all.map(net).collect()
}

fn memory_limit(env: &Env) -> Result<usize, EnvError> {
    let set = env.parse("AMBIT_MEMORY_LIMIT", "a number of bytes")?;
    let limit: u64 = set
        .or_else(limits::memory_limit)
        .unwrap_or(DEFAULT_MEMORY_LIMIT);
    Ok(usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Prefixes of upgrade protocols that carry further requests, which would bypass policies.
const NESTED_PROTOCOLS: [&str; 3] = ["h2", "http", "tls"];

fn upgrades(env: &Env) -> Result<Vec<ArcStr>, EnvError> {
    const NAME: &str = "AMBIT_UPGRADES";
    let all = match env.get(NAME) {
        None | Some("") => WEBSOCKET,
        Some("none") => "",
        Some(all) => all,
    };
    let all = all.split(',').map(str::trim).filter(|one| !one.is_empty());
    let one = |text: &str| {
        let name = text.to_ascii_lowercase();
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-._/+".contains(&byte);
        let may_be =
            name.bytes().all(is_token) && !NESTED_PROTOCOLS.iter().any(|one| name.starts_with(one));
        may_be.then(|| ArcStr::from(name)).ok_or_else(|| EnvError {
            variable: NAME.to_owned(),
            value: text.to_owned(),
            expected: "names of protocols other than HTTP and TLS, with commas between them, or none",
        })
    };
    all.map(one).collect()
}

fn access_log(env: &Env) -> Result<Option<AccessLogFormat>, EnvError> {
    match env.get("AMBIT_ACCESS_LOG") {
        None | Some("" | "text") => Ok(Some(AccessLogFormat::Text)),
        Some("json") => Ok(Some(AccessLogFormat::Json)),
        Some("off") => Ok(None),
        Some(other) => Err(EnvError {
            variable: "AMBIT_ACCESS_LOG".to_owned(),
            value: other.to_owned(),
            expected: "text, json or off",
        }),
    }
}

fn displayed<S: serde::Serializer>(name: &GatewayName, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_gateway_name_is_an_error() {
        let mut pairs = vec![
            ("POD_NAME", "waypoint-1"),
            ("POD_NAMESPACE", "shop"),
            ("SERVICE_ACCOUNT", "waypoint"),
        ];
        let error = Config::from_env(&Env::from_pairs(pairs.clone())).unwrap_err();
        assert!(error.to_string().starts_with("GATEWAY_NAME"), "{error}");
        pairs.push(("GATEWAY_NAME", "waypoint"));
        let config = Config::from_env(&Env::from_pairs(pairs)).unwrap();
        assert_eq!(
            config.address().destination.to_string(),
            "shop/waypoint.shop.svc.cluster.local"
        );
        assert_eq!(
            config.identity().to_string(),
            "spiffe://cluster.local/ns/shop/sa/waypoint"
        );
    }

    #[test]
    fn upgrades_to_http_or_tls_are_rejected() {
        let read = |value: &str| {
            upgrades(&Env::from_pairs(vec![(
                "AMBIT_UPGRADES".to_owned(),
                value.to_owned(),
            )]))
        };
        for (value, expected) in [
            ("", &["websocket"][..]),
            ("none", &[]),
            ("WebSocket, spice", &["websocket", "spice"]),
        ] {
            assert_eq!(read(value).unwrap(), expected, "{value}");
        }
        for value in ["h2c", "websocket,H2", "HTTP/2.0", "TLS/1.3", "a b"] {
            let error = read(value).unwrap_err().to_string();
            assert!(error.starts_with("AMBIT_UPGRADES"), "{error}");
        }
    }

    #[test]
    fn header_limits_are_validated() {
        let with = |name: &str, value: &str| {
            header_limits(&Env::from_pairs(vec![(name.to_owned(), value.to_owned())]))
        };
        assert_eq!(with("OTHER", "").unwrap(), HeaderLimits::default());
        assert_eq!(with("AMBIT_MAX_HEADERS", "200").unwrap().fields, 200);
        let bytes = with("AMBIT_MAX_HEADER_BYTES", "131072").unwrap().bytes;
        assert_eq!(bytes, 128 << 10);
        for (name, value) in [
            ("AMBIT_MAX_HEADERS", "0"),
            ("AMBIT_MAX_HEADERS", "many"),
            ("AMBIT_MAX_HEADER_BYTES", "1024"),
            ("AMBIT_MAX_HEADER_BYTES", "2097152"),
        ] {
            let error = with(name, value).unwrap_err().to_string();
            assert!(error.starts_with(name), "{error}");
        }
    }

    #[test]
    fn plugin_timeouts_must_not_be_zero() {
        let with = |name: &str, value: &str| {
            plugin_timeouts(&Env::from_pairs(vec![(name.to_owned(), value.to_owned())]))
        };
        let all = |times: PluginTimeouts| {
            [times.fetch, times.start, times.callback, times.hold].map(|time| time.as_millis())
        };
        let defaults = [120_000, 10_000, 100, 30_000];
        assert_eq!(all(with("OTHER", "").unwrap()), defaults);
        for (place, name) in ["FETCH", "START", "CALLBACK", "HOLD"].iter().enumerate() {
            let name = format!("AMBIT_WASM_{name}_TIMEOUT");
            let mut changed = defaults;
            changed[place] = 1_500;
            assert_eq!(all(with(&name, "1500ms").unwrap()), changed, "{name}");
            for wrong in ["0s", "soon"] {
                let error = with(&name, wrong).unwrap_err().to_string();
                assert!(error.starts_with(&name), "{error}");
            }
        }
    }
}
