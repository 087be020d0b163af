//! Settings of exports from OpenTelemetry's environment variables
//! (<https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/> and
//! <https://opentelemetry.io/docs/specs/otel/protocol/exporter/>).
//!
//! A signal is exported if an endpoint is set for it, or if its `OTEL_…_EXPORTER` is `otlp`. An unsupported value is
//! an error, unlike in the specification, which ignores it: missing metrics would be noticed too late. Errors never
//! repeat secrets.

use std::time::Duration;

use ambit_rt::{Env, EnvError};
use http::{HeaderMap, HeaderName, HeaderValue, Uri, uri::Scheme};

use crate::tls::{TlsError, TlsRoots};

/// Default timeout of one export.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// Default interval between exports of metrics.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(60);
/// Default endpoint of OTLP over HTTP.
const DEFAULT_HTTP_ENDPOINT: &str = "http://localhost:4318";
const DEFAULT_GRPC_ENDPOINT: &str = "http://localhost:4317";

/// Reason why OpenTelemetry's environment variables cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A variable has an invalid or unsupported value.
    #[error(transparent)]
    Value(#[from] EnvError),
    /// An endpoint contains a user and a password, which the error does not repeat.
    #[error("{variable} holds credentials; put them into OTEL_EXPORTER_OTLP_HEADERS")]
    Credentials {
        /// Name of the environment variable.
        variable: String,
    },
    /// The TLS configuration cannot be built.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A list of headers is invalid; the error does not repeat its text.
    #[error("{variable} is not a list such as name=value,name=value, with percent-encoded values")]
    Headers {
        /// Name of the environment variable.
        variable: String,
    },
}

/// Signal that is exported: metrics or logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Signal {
    Metrics,
    Logs,
}

impl Signal {
    /// Returns the part of environment variables' names that stands for the signal.
    fn variable_part(self) -> &'static str {
        match self {
            Self::Metrics => "METRICS",
            Self::Logs => "LOGS",
        }
    }

    /// Returns the value of the label `signal` in metrics.
    pub(crate) fn metric_label(self) -> &'static str {
        match self {
            Self::Metrics => "metrics",
            Self::Logs => "logs",
        }
    }

    /// Returns the path that is appended to a common endpoint, for OTLP over HTTP.
    fn http_path(self) -> &'static str {
        match self {
            Self::Metrics => "v1/metrics",
            Self::Logs => "v1/logs",
        }
    }

    /// Returns the path of the gRPC method.
    fn grpc_path(self) -> &'static str {
        match self {
            Self::Metrics => "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
            Self::Logs => "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
        }
    }
}

/// Protocol of exports (`OTEL_EXPORTER_OTLP_PROTOCOL`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// `http/protobuf`: OTLP over HTTP/1.1.
    Http,
    /// `grpc`: OTLP over gRPC (HTTP/2 with prior knowledge).
    Grpc,
}

/// Collector of one signal, with the settings of its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Collector {
    pub(crate) protocol: Protocol,
    /// Host name or IP address of the collector, without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// URI to which export requests are sent.
    pub(crate) uri: Uri,
    /// Root certificates that verify the collector; `None` without TLS.
    pub(crate) tls: Option<TlsRoots>,
    /// Headers of each export request, marked as sensitive.
    pub(crate) headers: HeaderMap,
    pub(crate) timeout: Duration,
}

/// Settings of a program's exports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) metrics: Option<Collector>,
    pub(crate) interval: Duration,
    pub(crate) logs: Option<Collector>,
    /// Names and values of the configured resource attributes.
    pub(crate) attributes: Vec<(String, String)>,
}

impl Settings {
    pub(crate) fn from_env(env: &Env) -> Result<Self, SettingsError> {
        if env.flag("OTEL_SDK_DISABLED")? == Some(true) {
            return Ok(Self::default());
        }
        let interval = milliseconds(env, "OTEL_METRIC_EXPORT_INTERVAL")?;
        let attributes = "OTEL_RESOURCE_ATTRIBUTES";
        let read = parse_pairs(env.get(attributes).unwrap_or_default());
        Ok(Self {
            metrics: collector(env, Signal::Metrics)?,
            interval: interval.unwrap_or(DEFAULT_INTERVAL),
            logs: collector(env, Signal::Logs)?,
            attributes: read.ok_or_else(|| {
                invalid_value(
                    env,
                    attributes,
                    "a list such as name=value,name=value, with percent-encoded values",
                )
            })?,
        })
    }
}

fn collector(env: &Env, signal: Signal) -> Result<Option<Collector>, SettingsError> {
    let own = |name: &str| format!("OTEL_EXPORTER_OTLP_{}_{name}", signal.variable_part());
    let common = |name: &str| format!("OTEL_EXPORTER_OTLP_{name}");
    let is_set = |variable: &String| env.get(variable).is_some_and(|text| !text.is_empty());
    // A signal's own variable overrides the common one; an empty one counts as unset.
    let one = |name: &str| [own(name), common(name)].into_iter().find(is_set);
    let endpoint = one("ENDPOINT");
    if !is_enabled(env, signal, endpoint.is_some())? {
        return Ok(None);
    }
    let protocol = match one("PROTOCOL") {
        None => Protocol::Http,
        Some(variable) => match env.get(&variable) {
            Some("http/protobuf") => Protocol::Http,
            Some("grpc") => Protocol::Grpc,
            _ => return Err(invalid_value(env, &variable, "http/protobuf or grpc").into()),
        },
    };
    if let Some(variable) = one("COMPRESSION")
        && env.get(&variable) != Some("none")
    {
        return Err(invalid_value(env, &variable, "none, the only supported compression").into());
    }
    let is_own = endpoint.as_ref() == Some(&own("ENDPOINT"));
    let text = match (&endpoint, protocol) {
        (Some(variable), _) => env.get(variable).unwrap_or_default(),
        (None, Protocol::Http) => DEFAULT_HTTP_ENDPOINT,
        (None, Protocol::Grpc) => DEFAULT_GRPC_ENDPOINT,
    };
    if let Some(variable) = &endpoint
        && text.contains('@')
    {
        let variable = variable.clone();
        return Err(SettingsError::Credentials { variable });
    }
    let target = parse_endpoint(text.trim(), protocol, signal, is_own).ok_or_else(|| {
        let variable = endpoint.unwrap_or_default();
        invalid_value(
            env,
            &variable,
            "a URL such as http://collector.observability:4318",
        )
    })?;
    for name in ["CLIENT_KEY", "CLIENT_CERTIFICATE"] {
        if let Some(variable) = one(name) {
            let expected = "supported: there are no client certificates; leave it unset";
            return Err(invalid_value(env, &variable, expected).into());
        }
    }
    let roots = |variable: String| TlsRoots::File {
        path: env.text(&variable, ""),
        variable,
    };
    let is_tls = target.2.scheme() == Some(&Scheme::HTTPS);
    let timeout = match one("TIMEOUT") {
        Some(variable) => milliseconds(env, &variable)?,
        None => None,
    };
    Ok(Some(Collector {
        protocol,
        host: target.0,
        port: target.1,
        uri: target.2,
        tls: is_tls.then(|| one("CERTIFICATE").map_or(TlsRoots::System, roots)),
        headers: match one("HEADERS") {
            None => HeaderMap::new(),
            Some(variable) => parse_headers(env.get(&variable).unwrap_or_default())
                .ok_or(SettingsError::Headers { variable })?,
        },
        timeout: timeout.unwrap_or(DEFAULT_TIMEOUT),
    }))
}

/// Returns whether a signal is exported, by `OTEL_…_EXPORTER`.
fn is_enabled(env: &Env, signal: Signal, has_endpoint: bool) -> Result<bool, EnvError> {
    let variable = format!("OTEL_{}_EXPORTER", signal.variable_part());
    let exporters = env.get(&variable).unwrap_or_default();
    let mut is_enabled = has_endpoint && exporters.trim().is_empty();
    for exporter in exporters.split(',').map(str::trim) {
        match (exporter, signal) {
            ("otlp", _) => is_enabled = true,
            // Metrics for Prometheus and log lines on standard output are always available.
            ("" | "none", _) | ("prometheus", Signal::Metrics) | ("console", Signal::Logs) => {}
            _ => return Err(invalid_value(env, &variable, "otlp or none")),
        }
    }
    Ok(is_enabled)
}

fn invalid_value(env: &Env, variable: &str, expected: &'static str) -> EnvError {
    EnvError {
        variable: variable.to_owned(),
        value: env.get(variable).unwrap_or_default().to_owned(),
        expected,
    }
}

/// Returns host, port and request URI of a collector's endpoint.
fn parse_endpoint(
    text: &str,
    protocol: Protocol,
    signal: Signal,
    is_own: bool,
) -> Option<(String, u16, Uri)> {
    let endpoint: Uri = text.parse().ok()?;
    let authority = endpoint.authority()?;
    let scheme = endpoint.scheme()?;
    let default_port = match scheme.as_str() {
        "http" => 80,
        "https" => 443,
        _ => return None,
    };
    let host = authority.host();
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let base = endpoint.path();
    let path = match protocol {
        Protocol::Grpc => signal.grpc_path().to_owned(),
        Protocol::Http if is_own => base.to_owned(),
        Protocol::Http => format!("{}/{}", base.trim_end_matches('/'), signal.http_path()),
    };
    let uri = Uri::builder()
        .scheme(scheme.clone())
        .authority(authority.clone())
        .path_and_query(path)
        .build()
        .ok()?;
    let port = match authority.as_str().strip_prefix(host)? {
        "" => default_port,
        port => port.strip_prefix(':')?.parse().ok()?,
    };
    let host = bare.unwrap_or(host);
    (!host.is_empty() && port != 0).then(|| (host.to_owned(), port, uri))
}

fn milliseconds(env: &Env, variable: &str) -> Result<Option<Duration>, EnvError> {
    let expected = "a number of milliseconds, above 0";
    match env.parse::<u64>(variable, expected)? {
        Some(0) => Err(invalid_value(env, variable, expected)),
        number => Ok(number.map(Duration::from_millis)),
    }
}

/// Parses the headers of export requests, which are marked as sensitive.
fn parse_headers(text: &str) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (name, value) in parse_pairs(text)? {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        let mut value = HeaderValue::from_str(&value).ok()?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Some(headers)
}

/// Parses `name=value,name=value` with percent-encoded values, the form of W3C's baggage without
/// properties.
fn parse_pairs(text: &str) -> Option<Vec<(String, String)>> {
    let entries = text.split(',').map(str::trim);
    let entries = entries.filter(|entry| !entry.is_empty());
    let read = |entry: &str| {
        let (name, value) = entry.split_once('=')?;
        let name = percent_decoded(name.trim())?;
        (!name.is_empty()).then_some((name, percent_decoded(value.trim())?))
    };
    entries.map(read).collect()
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        if *first == b'%' {
            let (digits, others) = others.split_at_checked(2)?;
            let digits = str::from_utf8(digits).ok()?;
            if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return None;
            }
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = others;
        } else {
            bytes.push(*first);
            rest = others;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests;
