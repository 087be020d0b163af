//! Parsing of the telemetry defaults in the MeshConfig.

use ambit_model::{ArcStr, TelemetryFormat};
use ambit_observation::{ISTIO_JSON_FORMAT, LogFormat};
use serde_json::{Map, Value};

use crate::{
    objects::config_map::fields::field_error,
    problem::{FieldError, Note},
};

/// MeshConfig fields that this module parses.
pub(crate) const TELEMETRY_FIELDS: [&str; 4] = [
    "accessLogEncoding",
    "accessLogFile",
    "accessLogFormat",
    "defaultProviders",
];

/// Telemetry defaults of the MeshConfig.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MeshTelemetry {
    /// Names of the default tracing providers.
    pub(crate) default_tracing: Vec<ArcStr>,
    /// Names of the default access log providers.
    pub(crate) default_logging: Vec<ArcStr>,
    /// Format of access log lines; `None` if the MeshConfig has no access log.
    pub(crate) access_log: Option<TelemetryFormat>,
    /// Number of requests per 10,000 that are traced.
    pub(crate) sampling: Option<u32>,
}

/// Parses the telemetry fields of a MeshConfig, and ignores the others.
pub(crate) fn read(
    all: &Map<String, Value>,
    notes: &mut Vec<Note>,
) -> Result<MeshTelemetry, FieldError> {
    let defaults = all.get("defaultProviders");
    let names = |field: &str| -> Vec<ArcStr> {
        let list = defaults
            .and_then(|all| all.get(field))
            .and_then(Value::as_array);
        let names = list.into_iter().flatten().filter_map(Value::as_str);
        names.map(ArcStr::from).collect()
    };
    if names("metrics").iter().any(|name| name != "prometheus") {
        let message = "only prometheus is followed: it is what there is anyway";
        notes.push(field_error("defaultProviders.metrics", message));
    }
    Ok(MeshTelemetry {
        default_tracing: names("tracing"),
        default_logging: names("accessLogging"),
        access_log: parse_access_log(all, notes)?,
        sampling: parse_sampling(all)?,
    })
}

fn parse_access_log(
    all: &Map<String, Value>,
    notes: &mut Vec<Note>,
) -> Result<Option<TelemetryFormat>, FieldError> {
    let text = |field: &str| all.get(field).and_then(Value::as_str).unwrap_or_default();
    let file = text("accessLogFile");
    if file.is_empty() {
        return Ok(None);
    }
    if file != "/dev/stdout" {
        let message = format!("is {file}: waypoints always write to /dev/stdout");
        notes.push(field_error("accessLogFile", message));
    }
    let format = text("accessLogFormat");
    let wrong = |cause: String| field_error("accessLogFormat", cause);
    match text("accessLogEncoding") {
        "" | "TEXT" if format.is_empty() => Ok(Some(TelemetryFormat::Default)),
        "" | "TEXT" => {
            LogFormat::parse_text(format).map_err(|cause| wrong(cause.to_string()))?;
            Ok(Some(TelemetryFormat::Text(format.into())))
        }
        "JSON" => {
            let format = if format.is_empty() {
                ISTIO_JSON_FORMAT
            } else {
                format
            };
            let object: Value =
                serde_json::from_str(format).map_err(|cause| wrong(cause.to_string()))?;
            LogFormat::from_json(&object).map_err(|cause| wrong(cause.to_string()))?;
            Ok(Some(TelemetryFormat::Json(format.into())))
        }
        other => {
            let message = format!("{other:?} is neither TEXT nor JSON");
            Err(field_error("accessLogEncoding", message))
        }
    }
}

fn parse_sampling(all: &Map<String, Value>) -> Result<Option<u32>, FieldError> {
    let tracing = all
        .get("defaultConfig")
        .and_then(|config| config.get("tracing"));
    let Some(sampling) = tracing.and_then(|tracing| tracing.get("sampling")) else {
        return Ok(None);
    };
    let percentage = sampling.as_f64();
    let percentage = percentage.filter(|percentage| (0.0..=100.0).contains(percentage));
    let percentage = percentage.ok_or_else(|| {
        let message = format!("{sampling} is not from 0 to 100");
        field_error("defaultConfig.tracing.sampling", message)
    })?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is from 0 to 10000"
    )]
    Ok(Some((percentage * 100.0).round() as u32))
}
