//! Environment variables that all proxies read: those of Istio's ztunnel, and Ambit's own, which start with `AMBIT_`.
//! Every error names its variable.

use std::{path::PathBuf, time::Duration};

use ambit_hbone::Settings;
use ambit_model::ArcStr;
use ambit_rt::{Env, EnvError};
use ambit_sys::socket::{Keepalive, Tuning};

use crate::{SetupLimits, control_plane::ControlPlaneService};

pub mod threads;

/// Default path of the control plane's root certificate.
const DEFAULT_ROOT_PATH: &str = "./var/run/secrets/istio/root-cert.pem";
/// Default path of the projected service account token.
const DEFAULT_TOKEN_PATH: &str = "./var/run/secrets/tokens/istio-token";

/// Error of an invalid environment variable.
#[derive(Debug, thiserror::Error)]
pub enum SettingError {
    /// Environment variable that cannot be parsed.
    #[error(transparent)]
    Variable(#[from] EnvError),
    /// Control plane URL with `http:` instead of `https:`.
    #[error("{variable}={address:?}: only https is supported, plain http is refused")]
    PlainHttp {
        /// Name of the variable.
        variable: &'static str,
        /// Value of the variable.
        address: String,
    },
}

/// Returns the first variable that is set and not empty, or `default`.
pub fn first_set(env: &Env, names: &[&str], default: &str) -> ArcStr {
    names
        .iter()
        .find_map(|name| env.get(name).filter(|text| !text.is_empty()))
        .unwrap_or(default)
        .into()
}

/// Reads the settings of the control plane service with the variables' prefix `CA` or `XDS`; `discovery_address` is
/// the address in the mesh configuration.
///
/// # Errors
///
/// When the URL is plain HTTP.
pub fn control_plane_service(
    env: &Env,
    prefix: &'static str,
    discovery_address: Option<&str>,
) -> Result<ControlPlaneService, SettingError> {
    let (variable, root, alternative) = match prefix {
        "CA" => ("CA_ADDRESS", "CA_ROOT_CA", "ALT_CA_HOSTNAME"),
        _ => ("XDS_ADDRESS", "XDS_ROOT_CA", "ALT_XDS_HOSTNAME"),
    };
    let in_kubernetes = env.get("KUBERNETES_SERVICE_HOST").is_some();
    let default = match discovery_address {
        Some(address) => address,
        None if in_kubernetes => "https://istiod.istio-system.svc:15012",
        None => "https://localhost:15012",
    };
    let address = match env.text(variable, default) {
        empty if empty.is_empty() => None,
        address if address.starts_with("http://") => {
            return Err(SettingError::PlainHttp { variable, address });
        }
        address if address.starts_with("https://") => Some(address),
        address => Some(format!("https://{address}")),
    };
    Ok(ControlPlaneService {
        address,
        root: env.text(root, DEFAULT_ROOT_PATH),
        alternative_name: env
            .get(alternative)
            .filter(|t| !t.is_empty())
            .map(str::to_owned),
    })
}

/// Returns the path in a variable, if it is set and not empty.
pub fn path_variable(env: &Env, name: &str) -> Option<PathBuf> {
    let path = env.get(name).filter(|path| !path.is_empty());
    path.map(Into::into)
}

/// Returns `AUTH_TOKEN`, or else the path of the projected service account token if it is mounted.
pub fn auth_token(env: &Env) -> Option<String> {
    match env.get("AUTH_TOKEN") {
        Some(token) => Some(token.to_owned()).filter(|token| !token.is_empty()),
        None => std::path::Path::new(DEFAULT_TOKEN_PATH)
            .exists()
            .then(|| DEFAULT_TOKEN_PATH.to_owned()),
    }
}

/// Reads the TCP keepalive settings (`KEEPALIVE_*`, `USER_TIMEOUT_ENABLED`).
///
/// # Errors
///
/// When a variable cannot be parsed.
pub fn tcp_tuning(env: &Env) -> Result<Tuning, SettingError> {
    let time = env
        .duration("KEEPALIVE_TIME")?
        .unwrap_or(Duration::from_secs(180));
    let interval = env
        .duration("KEEPALIVE_INTERVAL")?
        .unwrap_or(Duration::from_secs(180));
    let retries = env.parse("KEEPALIVE_RETRIES", "a number")?.unwrap_or(9);
    let keepalive = Keepalive {
        time,
        interval,
        retries,
    };
    Ok(Tuning {
        keepalive: env
            .flag("KEEPALIVE_ENABLED")?
            .unwrap_or(true)
            .then_some(keepalive),
        user_timeout: env
            .flag("USER_TIMEOUT_ENABLED")?
            .unwrap_or(false)
            .then(|| time + interval.saturating_mul(retries)),
        is_local: false,
        resets: false,
    })
}

/// Reads the limits of connections in setup (`AMBIT_MAX_SETUPS_PER_SOURCE`, `AMBIT_MAX_SETUPS_PER_POD`).
///
/// # Errors
///
/// When a variable cannot be parsed.
pub fn setup_limits(env: &Env) -> Result<SetupLimits, SettingError> {
    let defaults = SetupLimits::default();
    let number = |name: &'static str, default| {
        Ok::<_, EnvError>(env.parse(name, "a number")?.unwrap_or(default))
    };
    Ok(SetupLimits {
        source: number("AMBIT_MAX_SETUPS_PER_SOURCE", defaults.source)?,
        pod: number("AMBIT_MAX_SETUPS_PER_POD", defaults.pod)?,
    })
}

/// Reads the HTTP/2 and pool settings of tunnels (`HTTP2_*`, `POOL_*`).
///
/// # Errors
///
/// When a variable cannot be parsed.
pub fn http2_settings(env: &Env) -> Result<Settings, SettingError> {
    let defaults = Settings::default();
    let bytes = |name: &str, max: u32, default: u32| -> Result<u32, SettingError> {
        let value: Option<u32> = env.parse(name, "a number of bytes")?;
        match value {
            Some(value) if value < 16_384 || value > max => Err(SettingError::Variable(EnvError {
                variable: name.to_owned(),
                value: value.to_string(),
                expected: "a number of bytes that HTTP/2 allows, at least 16384",
            })),
            value => Ok(value.unwrap_or(default)),
        }
    };
    let window = (1 << 31) - 1;
    Ok(Settings {
        stream_window: bytes("HTTP2_STREAM_WINDOW_SIZE", window, defaults.stream_window)?,
        connection_window: bytes(
            "HTTP2_CONNECTION_WINDOW_SIZE",
            window,
            defaults.connection_window,
        )?,
        max_frame_bytes: bytes("HTTP2_FRAME_SIZE", (1 << 24) - 1, defaults.max_frame_bytes)?,
        max_streams: env
            .parse("POOL_MAX_STREAMS_PER_CONNECTION", "a number above 0")?
            .map_or(defaults.max_streams, |n: std::num::NonZeroU16| {
                usize::from(n.get())
            }),
        idle_timeout: env
            .duration("POOL_UNUSED_RELEASE_TIMEOUT")?
            .unwrap_or(defaults.idle_timeout),
        ..defaults
    })
}
