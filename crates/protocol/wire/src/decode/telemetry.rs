//! Decodes what waypoints tell of requests. A record that is not understood in full is refused.

use std::time::Duration;

use ambit_model as model;

use super::{
    DecodeError, known,
    parts::{hostname, optional, whole},
    port,
};
use crate::{ambit as wire, unknown::AMBIT_V1_WAYPOINTTELEMETRY};

#[cfg(test)]
mod tests;

/// Decodes what a waypoint tells of requests.
///
/// # Errors
/// When it is not understood in full.
pub fn waypoint_telemetry(bytes: &[u8]) -> Result<model::WaypointTelemetry, DecodeError> {
    use wire::waypoint_telemetry::Scope;
    let from: wire::WaypointTelemetry =
        whole("waypoint_telemetry", &AMBIT_V1_WAYPOINTTELEMETRY, bytes)?;
    let metrics = from.metrics.into_iter().map(metric);
    let logs = from
        .logs
        .map(|logs| logs.logs.into_iter().map(log).collect());
    Ok(model::WaypointTelemetry {
        scope: match from.scope {
            None => model::TelemetryScope::Waypoint,
            Some(Scope::Namespace(name)) => model::TelemetryScope::Namespace(name.into()),
            Some(Scope::Service(name)) => {
                let name = hostname("waypoint_telemetry.service", Some(name))?;
                model::TelemetryScope::Service(name)
            }
        },
        tracing: from.tracing.map(tracing).transpose()?,
        logs: logs.transpose()?,
        metrics: metrics.collect::<Result<_, _>>()?,
    })
}

fn collector(from: wire::OtlpCollector) -> Result<model::OtlpCollector, DecodeError> {
    let header = |header: wire::HttpHeader| (header.name.into(), header.value.into());
    Ok(model::OtlpCollector {
        service: hostname("otlp_collector.service", from.service)?,
        port: port("otlp_collector.port", from.port)?,
        http_path: optional(from.http_path),
        timeout: (from.timeout > 0).then(|| Duration::from_millis(from.timeout)),
        headers: from.headers.into_iter().map(header).collect(),
    })
}

fn tracing(from: wire::TelemetryTracing) -> Result<model::TelemetryTracing, DecodeError> {
    let to = from.collector;
    let to = to.ok_or_else(|| DecodeError::missing("telemetry_tracing.collector"))?;
    Ok(model::TelemetryTracing {
        collector: collector(to)?,
        sampling: from.sampling,
        by_request_id: from.by_request_id,
        istio_tags: from.istio_tags,
        tags: from.tags.into_iter().map(tag).collect::<Result<_, _>>()?,
        max_tag: from.max_tag,
        propagates: !from.no_propagation,
    })
}

fn tag(from: wire::TelemetryTag) -> Result<model::TelemetryTag, DecodeError> {
    use model::TelemetryTagValue as Value;
    use wire::telemetry_tag::Kind;
    let default = from.default.into();
    let kind = from.kind;
    let kind = kind.ok_or_else(|| DecodeError::missing("telemetry_tag.kind"))?;
    Ok(model::TelemetryTag {
        name: from.name.into(),
        value: match kind {
            Kind::Literal(text) => Value::Literal(text.into()),
            Kind::Environment(name) => Value::Environment(name.into(), default),
            Kind::Header(name) => Value::Header(name.into(), default),
            Kind::Formatter(text) => Value::Formatter(text.into()),
        },
    })
}

fn log(from: wire::TelemetryLog) -> Result<model::TelemetryLog, DecodeError> {
    use wire::telemetry_log::Format;
    Ok(model::TelemetryLog {
        collector: from.collector.map(collector).transpose()?,
        name: from.name.into(),
        format: match from.format {
            None => model::TelemetryFormat::Default,
            Some(Format::Text(text)) => model::TelemetryFormat::Text(text.into()),
            Some(Format::Json(text)) => model::TelemetryFormat::Json(text.into()),
        },
        filter: optional(from.filter),
    })
}

fn metric(from: wire::TelemetryMetric) -> Result<model::TelemetryMetric, DecodeError> {
    use model::TelemetryFamily as Family;
    use wire::TelemetryFamily as Sent;
    let label = |label: wire::TelemetryLabel| (label.name.into(), optional(label.value));
    Ok(model::TelemetryMetric {
        family: match known("telemetry_metric.family", from.family)? {
            Sent::RequestCount => Family::RequestCount,
            Sent::RequestDuration => Family::RequestDuration,
            Sent::RequestSize => Family::RequestSize,
            Sent::ResponseSize => Family::ResponseSize,
            Sent::RequestMessages => Family::RequestMessages,
            Sent::ResponseMessages => Family::ResponseMessages,
            Sent::OpenedConnections => Family::OpenedConnections,
            Sent::ClosedConnections => Family::ClosedConnections,
            Sent::SentBytes => Family::SentBytes,
            Sent::ReceivedBytes => Family::ReceivedBytes,
        },
        disabled: from.disabled,
        labels: from.labels.into_iter().map(label).collect(),
    })
}
