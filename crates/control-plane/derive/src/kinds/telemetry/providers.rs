//! Telemetry providers of the MeshConfig: collectors of spans, and destinations and formats of access logs.

use std::time::Duration;

use ambit_model::{ArcStr, OtlpCollector, TelemetryFormat, TelemetryLog};
use ambit_observation::LogFormat;
use serde_json::{Map, Value};

use crate::{objects::telemetry::input::TelemetryInput, view::MeshView};

/// Name of the built-in access log provider, which writes to the waypoint's own log.
pub(crate) const BUILTIN_LOG_PROVIDER: &str = "envoy";
/// Kind of the MeshConfig's metrics providers, and name of the built-in one.
const PROMETHEUS_PROVIDER: &str = "prometheus";
/// Default path for spans over OTLP/HTTP, as OpenTelemetry defines it.
const TRACES_PATH: &str = "/v1/traces";

/// Destination and format of an access log, without its filter.
pub(crate) struct LogDestination(pub(crate) TelemetryLog);

/// Returns the reasons why providers that an object names cannot be used.
pub(crate) fn provider_errors(view: &MeshView, of: &TelemetryInput) -> Vec<String> {
    let tracers = of.tracing.iter().flat_map(|part| &part.providers);
    let tracers = tracers.filter_map(|name| resolve_tracing_provider(view, name).err());
    let loggers = of.logs.iter().flat_map(|part| &part.providers);
    let loggers = loggers.filter_map(|name| resolve_log_provider(view, name).err());
    let metrics = of.metrics.iter().flat_map(|part| &part.providers);
    let metrics = metrics.filter_map(|name| check_metrics_provider(view, name).err());
    let mut all: Vec<_> = tracers.chain(loggers).chain(metrics).collect();
    all.dedup();
    all
}

fn unknown_provider_message(name: &str) -> String {
    format!("meshConfig.extensionProviders has no provider {name}: references to it have no effect")
}

fn wrong_provider_kind_message(name: &str, kind: &str, what: &str) -> String {
    format!("the provider {name} is of the kind {kind}, which is not supported for {what}")
}

/// Resolves a tracing provider to the collector that receives spans.
pub(crate) fn resolve_tracing_provider(
    view: &MeshView,
    name: &str,
) -> Result<OtlpCollector, String> {
    let provider = view
        .extension_provider(name)
        .ok_or_else(|| unknown_provider_message(name))?;
    if provider.kind != "opentelemetry" {
        return Err(wrong_provider_kind_message(
            name,
            &provider.kind,
            "tracing: opentelemetry is",
        ));
    }
    resolve_collector(view, name, &provider.settings)
}

/// Resolves an access log provider to a destination and format.
pub(crate) fn resolve_log_provider(view: &MeshView, name: &str) -> Result<LogDestination, String> {
    let of_mesh = view
        .settings()
        .and_then(|one| one.telemetry.access_log.clone());
    let log = |collector, name: &str, format| {
        LogDestination(TelemetryLog {
            collector,
            name: name.into(),
            format,
            filter: None,
        })
    };
    let Some(provider) = view.extension_provider(name) else {
        return match name {
            BUILTIN_LOG_PROVIDER => Ok(log(None, name, of_mesh.unwrap_or_default())),
            _ => Err(unknown_provider_message(name)),
        };
    };
    let settings = &provider.settings;
    match provider.kind.as_str() {
        "envoyFileAccessLog" => {
            let path = settings
                .get("path")
                .and_then(Value::as_str)
                .unwrap_or("/dev/stdout");
            if path != "/dev/stdout" {
                return Err(format!(
                    "the provider {name} writes to {path}: waypoints write to /dev/stdout alone"
                ));
            }
            let format = parse_log_format(name, settings)?;
            let format = format.or(of_mesh).unwrap_or_default();
            Ok(log(None, name, format))
        }
        "envoyOtelAls" => {
            let to = resolve_collector(view, name, settings)?;
            let log_name = settings.get("logName").and_then(Value::as_str);
            let format = parse_log_format(name, settings)?.unwrap_or_default();
            Ok(log(
                Some(to),
                log_name.unwrap_or("otel_envoy_accesslog"),
                format,
            ))
        }
        kind => Err(wrong_provider_kind_message(
            name,
            kind,
            "access logs: envoyFileAccessLog and envoyOtelAls are",
        )),
    }
}

/// Checks that a provider is a supported metrics provider, that is, Prometheus.
pub(crate) fn check_metrics_provider(view: &MeshView, name: &str) -> Result<(), String> {
    match view.extension_provider(name) {
        Some(provider) if provider.kind == PROMETHEUS_PROVIDER => Ok(()),
        Some(provider) => Err(wrong_provider_kind_message(
            name,
            &provider.kind,
            "metrics: prometheus is",
        )),
        None if name == PROMETHEUS_PROVIDER => Ok(()),
        None => Err(unknown_provider_message(name)),
    }
}

fn resolve_collector(
    view: &MeshView,
    name: &str,
    settings: &Map<String, Value>,
) -> Result<OtlpCollector, String> {
    let wrong = |what: &str| format!("the provider {name}: {what}");
    let service = settings.get("service").and_then(Value::as_str);
    let service = service.ok_or_else(|| wrong("service is missing"))?;
    let port = settings.get("port").and_then(Value::as_u64);
    let port = port
        .and_then(|port| u16::try_from(port).ok())
        .filter(|port| *port > 0);
    let http = settings.get("http").filter(|http| !http.is_null());
    let grpc = settings.get("grpc").filter(|grpc| !grpc.is_null());
    let more = http.or(grpc);
    let path = http.map(|http| {
        http.get("path")
            .and_then(Value::as_str)
            .unwrap_or(TRACES_PATH)
    });
    if path.is_some_and(|path| !path.starts_with('/')) {
        return Err(wrong("http.path does not begin with /"));
    }
    let timeout = more
        .and_then(|more| more.get("timeout"))
        .and_then(Value::as_str);
    let headers = http
        .and_then(|http| http.get("headers"))
        .or_else(|| grpc?.get("initialMetadata"));
    let headers = headers.and_then(Value::as_array);
    let mut node_proxy_policy = Vec::new();
    for header in headers.into_iter().flatten() {
        let text = |field: &str| header.get(field).and_then(Value::as_str).map(str::to_owned);
        let name = text("name").ok_or_else(|| wrong("a header has no name"))?;
        let value = text("value").or_else(|| text("envName").map(|_| String::new()));
        if text("envName").is_some() {
            return Err(wrong("headers from the environment are not supported"));
        }
        node_proxy_policy.push((
            ArcStr::from(name.to_ascii_lowercase()),
            ArcStr::from(value.unwrap_or_default()),
        ));
    }
    Ok(OtlpCollector {
        service: view.resolve_callee(service).map_err(|why| wrong(&why))?,
        port: port.ok_or_else(|| wrong("port is missing, or is none"))?,
        http_path: path.map(ArcStr::from),
        timeout: match timeout {
            None => None,
            Some(text) => {
                Some(parse_seconds(text).ok_or_else(|| wrong("timeout is no time, such as 3s"))?)
            }
        },
        headers: node_proxy_policy,
    })
}

fn parse_seconds(text: &str) -> Option<Duration> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 0.001),
        None => (text.strip_suffix('s')?, 1.0),
    };
    let seconds: f64 = number.parse().ok()?;
    Duration::try_from_secs_f64(seconds * unit)
        .ok()
        .filter(|time| !time.is_zero())
}

/// Parses the log format of a provider; `None` if it is unset.
fn parse_log_format(
    name: &str,
    settings: &Map<String, Value>,
) -> Result<Option<TelemetryFormat>, String> {
    let Some(format) = settings.get("logFormat").filter(|format| !format.is_null()) else {
        return Ok(None);
    };
    let wrong = |error| format!("the provider {name}: logFormat: {error}");
    if let Some(text) = format.get("text").and_then(Value::as_str) {
        LogFormat::parse_text(text).map_err(wrong)?;
        return Ok(Some(TelemetryFormat::Text(text.into())));
    }
    let Some(labels) = format.get("labels") else {
        return Ok(None);
    };
    LogFormat::from_json(labels).map_err(wrong)?;
    Ok(Some(TelemetryFormat::Json(labels.to_string().into())))
}
