//! Codec of telemetry settings: traces, access logs, metrics.

#[cfg(test)]
mod tests;

use std::time::Duration;

use ambit_model as model;
use prost::Message as _;

use super::{
    RecordCodec,
    decode_fields::{decode_hostname, none_if_empty},
    encode_fields,
};
use crate::{
    ambit as wire,
    decode::{DecodeError, RecordDecodeError, decode_enum, decode_port, decode_strictly},
    unknown::AMBIT_V1_WAYPOINTTELEMETRY,
};

impl RecordCodec for model::WaypointTelemetry {
    const TYPE_URL: &'static str = "type.googleapis.com/ambit.v1.WaypointTelemetry";
    const SHORT_NAME: &'static str = "WPTDS";

    fn encode(&self) -> Vec<u8> {
        wire::WaypointTelemetry::from(self).encode_to_vec()
    }

    fn decode(_name: &str, bytes: &[u8]) -> Result<Self, RecordDecodeError<Self>> {
        let read = decode_strictly("waypoint_telemetry", &AMBIT_V1_WAYPOINTTELEMETRY, bytes)
            .and_then(telemetry);
        read.map_err(RecordDecodeError::without_substitute)
    }
}

fn telemetry(from: wire::WaypointTelemetry) -> Result<model::WaypointTelemetry, DecodeError> {
    use wire::waypoint_telemetry::Scope;
    let metrics = from.metrics.into_iter().map(metric);
    let logs = from
        .logs
        .map(|logs| logs.logs.into_iter().map(log).collect());
    Ok(model::WaypointTelemetry {
        scope: match from.scope {
            None => model::TelemetryScope::Waypoint,
            Some(Scope::Namespace(name)) => model::TelemetryScope::Namespace(name.into()),
            Some(Scope::Service(name)) => {
                let name = decode_hostname("waypoint_telemetry.service", Some(name))?;
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
        service: decode_hostname("otlp_collector.service", from.service)?,
        port: decode_port("otlp_collector.port", from.port)?,
        http_path: none_if_empty(from.http_path),
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
        filter: none_if_empty(from.filter),
    })
}

fn metric(from: wire::TelemetryMetric) -> Result<model::TelemetryMetric, DecodeError> {
    use model::TelemetryFamily as Family;
    use wire::TelemetryFamily as Sent;
    let label = |label: wire::TelemetryLabel| (label.name.into(), none_if_empty(label.value));
    Ok(model::TelemetryMetric {
        family: match decode_enum("telemetry_metric.family", from.family)? {
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

impl From<&model::WaypointTelemetry> for wire::WaypointTelemetry {
    fn from(from: &model::WaypointTelemetry) -> Self {
        use wire::waypoint_telemetry::Scope;
        Self {
            scope: match &from.scope {
                model::TelemetryScope::Waypoint => None,
                model::TelemetryScope::Namespace(name) => Some(Scope::Namespace(name.to_string())),
                model::TelemetryScope::Service(service) => Some(Scope::Service(service.into())),
            },
            tracing: from.tracing.as_ref().map(Into::into),
            logs: from.logs.as_ref().map(|logs| wire::TelemetryLogs {
                logs: logs.iter().map(Into::into).collect(),
            }),
            metrics: from.metrics.iter().map(Into::into).collect(),
        }
    }
}

impl From<&model::OtlpCollector> for wire::OtlpCollector {
    fn from(from: &model::OtlpCollector) -> Self {
        let header = |(name, value): &(model::ArcStr, model::ArcStr)| wire::HttpHeader {
            name: name.to_string(),
            value: value.to_string(),
        };
        Self {
            service: Some((&from.service).into()),
            port: from.port.into(),
            http_path: encode_fields::encode_optional(from.http_path.as_ref()),
            timeout: encode_fields::encode_milliseconds(from.timeout),
            headers: from.headers.iter().map(header).collect(),
        }
    }
}

impl From<&model::TelemetryTracing> for wire::TelemetryTracing {
    fn from(from: &model::TelemetryTracing) -> Self {
        Self {
            collector: Some((&from.collector).into()),
            sampling: from.sampling,
            by_request_id: from.by_request_id,
            istio_tags: from.istio_tags,
            tags: from.tags.iter().map(Into::into).collect(),
            max_tag: from.max_tag,
            no_propagation: !from.propagates,
        }
    }
}

impl From<&model::TelemetryTag> for wire::TelemetryTag {
    fn from(from: &model::TelemetryTag) -> Self {
        use model::TelemetryTagValue as Value;
        use wire::telemetry_tag::Kind;
        let (kind, default) = match &from.value {
            Value::Literal(text) => (Kind::Literal(text.to_string()), None),
            Value::Environment(name, default) => {
                (Kind::Environment(name.to_string()), Some(default))
            }
            Value::Header(name, default) => (Kind::Header(name.to_string()), Some(default)),
            Value::Formatter(text) => (Kind::Formatter(text.to_string()), None),
        };
        Self {
            name: from.name.to_string(),
            kind: Some(kind),
            default: encode_fields::encode_optional(default),
        }
    }
}

impl From<&model::TelemetryLog> for wire::TelemetryLog {
    fn from(from: &model::TelemetryLog) -> Self {
        use wire::telemetry_log::Format;
        Self {
            collector: from.collector.as_ref().map(Into::into),
            name: from.name.to_string(),
            format: match &from.format {
                model::TelemetryFormat::Default => None,
                model::TelemetryFormat::Text(text) => Some(Format::Text(text.to_string())),
                model::TelemetryFormat::Json(text) => Some(Format::Json(text.to_string())),
            },
            filter: encode_fields::encode_optional(from.filter.as_ref()),
        }
    }
}

impl From<&model::TelemetryMetric> for wire::TelemetryMetric {
    fn from(from: &model::TelemetryMetric) -> Self {
        use model::TelemetryFamily as Family;
        use wire::TelemetryFamily as Sent;
        let family = match from.family {
            Family::RequestCount => Sent::RequestCount,
            Family::RequestDuration => Sent::RequestDuration,
            Family::RequestSize => Sent::RequestSize,
            Family::ResponseSize => Sent::ResponseSize,
            Family::RequestMessages => Sent::RequestMessages,
            Family::ResponseMessages => Sent::ResponseMessages,
            Family::OpenedConnections => Sent::OpenedConnections,
            Family::ClosedConnections => Sent::ClosedConnections,
            Family::SentBytes => Sent::SentBytes,
            Family::ReceivedBytes => Sent::ReceivedBytes,
        };
        let label = |(name, value): &(model::ArcStr, Option<model::ArcStr>)| wire::TelemetryLabel {
            name: name.to_string(),
            value: encode_fields::encode_optional(value.as_ref()),
        };
        Self {
            family: family.into(),
            disabled: from.disabled,
            labels: from.labels.iter().map(label).collect(),
        }
    }
}
