//! The environment, read once and typed: what node proxies read too, and what is the waypoint's own.

use std::{net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use ambit_hbone::Settings;
use ambit_model::{
    ArcStr, Destination, GatewayAddress, GatewayName, HBONE_PORT, Identity, NamespacedHostname,
    PodName,
};
use ambit_proxy::{
    SetupLimits,
    control_plane::Upstream,
    environment::{self, SettingError, first, upstream},
};
use ambit_rt::{Env, EnvError, drain::termination_deadline};
use ambit_sys::socket::Tuning;
use ambit_telemetry::http::AccessLogFormat;
use ambit_tls::TlsSettings;
use ambit_wasm::Limits;
use ipnet::IpNet;
use serde::Serialize;

/// All of it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Config {
    /// `POD_NAME`, `POD_NAMESPACE`, `SERVICE_ACCOUNT`: its pod.
    #[serde(flatten, with = "ambit_mesh_json::PodNameForm")]
    pub own: PodName,
    /// `GATEWAY_NAME`, in the pod's namespace.
    #[serde(serialize_with = "displayed")]
    pub gateway: GatewayName,
    /// `NODE_NAME`.
    pub node: ArcStr,
    /// `INSTANCE_IP`.
    pub ip: Option<IpAddr>,
    /// `TRUST_DOMAIN`.
    pub trust_domain: ArcStr,
    /// `NETWORK`.
    pub network: ArcStr,
    /// `CLUSTER_ID` or `ISTIO_META_CLUSTER_ID`.
    pub cluster_id: ArcStr,
    /// `CLUSTER_DOMAIN`.
    pub cluster_domain: ArcStr,
    /// `XDS_ADDRESS` and companions.
    pub xds: Upstream,
    /// `CA_ADDRESS` and companions.
    pub ca: Upstream,
    /// `AUTH_TOKEN`: a path or the token itself. Never dumped.
    #[serde(skip)]
    pub auth_token: Option<String>,
    /// `SECRET_TTL`.
    pub secret_ttl: Duration,
    /// `KEEPALIVE_*`, `USER_TIMEOUT_ENABLED`.
    #[serde(skip)]
    pub tuning: Tuning,
    /// `HTTP2_*`, `POOL_*`.
    #[serde(skip)]
    pub http2: Arc<Settings>,
    /// `AMBIT_MAX_SETUPS_PER_SOURCE`, `AMBIT_MAX_SETUPS_PER_POD`.
    pub setup_limits: SetupLimits,
    /// Worker threads.
    pub workers: usize,
    /// `CONNECTION_TERMINATION_DEADLINE`, `TERMINATION_GRACE_PERIOD_SECONDS`: how long requests may go on when
    /// the process is to end.
    pub termination_deadline: Duration,
    /// `AMBIT_WAYPOINT_LINGER`: how long new connections are still taken when the process is to end, until
    /// clients have learnt of it.
    pub linger: Duration,
    /// `AMBIT_REQUEST_HEADERS_TIMEOUT`: how long the header section of a request of HTTP/1 may take, from its first
    /// byte on.
    pub headers_timeout: Duration,
    /// `AMBIT_ACCESS_LOG`: `text` (Istio's default line), `json`, or `off`.
    #[serde(skip)]
    pub access_log: Option<AccessLogFormat>,
    /// `AMBIT_WASM_CACHE`: the directory in which modules of plugins are kept.
    pub modules: PathBuf,
    /// `WASM_INSECURE_REGISTRIES`: registries of plugins' images without TLS, with commas between them; `*` is all.
    pub insecure_registries: Vec<String>,
    /// `AMBIT_WASM_*_TIMEOUT`: what plugins may take.
    pub plugins: PluginTimes,
    /// `AMBIT_WILDCARD_ADDRESSES`: addresses and prefixes, with commas between them, that hosts below wildcards may
    /// have although they are the mesh's or the node's own.
    pub allowed_hosts: Vec<IpNet>,
    /// `TLS12_ENABLED`, `COMPLIANCE_POLICY`: what TLS that begins here goes by, as far as it concerns others.
    #[serde(skip)]
    pub tls: TlsSettings,
    /// `AMBIT_TLS_FILES`: where the certificates and keys are that rules name, of each namespace in a directory of its
    /// name; rules say `/etc/certs` wherever it is.
    pub tls_files: PathBuf,
    /// `IPV6_ENABLED`.
    pub ipv6: bool,
    /// Admin server's port, on the loopback address.
    pub admin_port: u16,
    /// Metrics server's port.
    pub stats_port: u16,
    /// Readiness server's port.
    pub readiness_port: u16,
}

/// How long plugins may take.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginTimes {
    /// `AMBIT_WASM_FETCH_TIMEOUT`: to fetch a module.
    pub fetch: Duration,
    /// `AMBIT_WASM_START_TIMEOUT`: for an instance to start and take its configuration.
    pub start: Duration,
    /// `AMBIT_WASM_CALLBACK_TIMEOUT`: for one callback.
    pub callback: Duration,
    /// `AMBIT_WASM_HOLD_TIMEOUT`: to hold a request or an answer before its body.
    pub hold: Duration,
}

/// The configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A setting that all proxies have.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// A variable's text.
    #[error(transparent)]
    Variable(#[from] EnvError),
    /// A variable that cannot be missing.
    #[error("{0} is not set: a waypoint has to know its own pod and Gateway")]
    Missing(&'static str),
}

impl Config {
    /// Reads the environment.
    ///
    /// # Errors
    /// When a value is missing or cannot be used; the error names it.
    pub fn from_env(env: &Env) -> Result<Self, ConfigError> {
        let text = |name: &str| ArcStr::from(env.get(name).unwrap_or_default());
        let needed = |name: &'static str| match env.get(name) {
            None | Some("") => Err(ConfigError::Missing(name)),
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
            cluster_id: first(env, &["ISTIO_META_CLUSTER_ID", "CLUSTER_ID"], "Kubernetes"),
            cluster_domain: env.text("CLUSTER_DOMAIN", "cluster.local").into(),
            xds: upstream(env, "XDS", None)?,
            ca: upstream(env, "CA", None)?,
            auth_token: environment::auth_token(env),
            secret_ttl: env
                .duration("SECRET_TTL")?
                .unwrap_or(Duration::from_secs(24 * 3600)),
            tuning: environment::tuning(env)?,
            http2: Arc::new(environment::http2(env)?),
            setup_limits: environment::setup_limits(env)?,
            workers: environment::threads::workers(env, None)?,
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
            access_log: access_log(env)?,
            modules: env.text("AMBIT_WASM_CACHE", "/tmp/ambit-wasm").into(),
            insecure_registries: insecure_registries(env),
            plugins: plugin_times(env)?,
            allowed_hosts: allowed_hosts(env)?,
            tls: TlsSettings::from_env(env)?,
            tls_files: env.text("AMBIT_TLS_FILES", "/etc/certs").into(),
            ipv6: env.flag("IPV6_ENABLED")?.unwrap_or(true),
            admin_port: 15000,
            stats_port: 15020,
            readiness_port: 15021,
        })
    }

    /// Its identity.
    pub fn identity(&self) -> Identity {
        Identity::new(
            self.trust_domain.clone(),
            self.own.namespace.clone(),
            self.own.service_account.clone(),
        )
    }

    /// How records name this waypoint.
    pub fn address(&self) -> GatewayAddress {
        let GatewayName { namespace, name } = &self.gateway;
        let hostname = arcstr::format!("{name}.{namespace}.svc.{}", self.cluster_domain);
        GatewayAddress {
            destination: Destination::Hostname(NamespacedHostname::new(
                namespace.clone(),
                hostname,
            )),
            hbone_mtls_port: HBONE_PORT,
        }
    }
}

fn plugin_times(env: &Env) -> Result<PluginTimes, EnvError> {
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
    Ok(PluginTimes {
        fetch: read("AMBIT_WASM_FETCH_TIMEOUT", Duration::from_secs(120))?,
        start: read("AMBIT_WASM_START_TIMEOUT", limits.start)?,
        callback: read("AMBIT_WASM_CALLBACK_TIMEOUT", limits.callback)?,
        hold: read("AMBIT_WASM_HOLD_TIMEOUT", Duration::from_secs(30))?,
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
    fn a_waypoint_must_know_its_gateway() {
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
    fn times_of_plugins_are_settings_and_never_zero() {
        let with = |name: &str, value: &str| {
            plugin_times(&Env::from_pairs(vec![(name.to_owned(), value.to_owned())]))
        };
        let all = |times: PluginTimes| {
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
