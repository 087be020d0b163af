//! What waypoints tell of requests, as it is sent.

use ambit_model as model;

use super::waypoint::{milliseconds, optional};
use crate::ambit as wire;

/// Type URL of what waypoints tell of requests.
pub const WAYPOINT_TELEMETRY_TYPE_URL: &str = "type.googleapis.com/ambit.v1.WaypointTelemetry";

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
            http_path: optional(from.http_path.as_ref()),
            timeout: milliseconds(from.timeout),
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
            default: optional(default),
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
            filter: optional(from.filter.as_ref()),
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
            value: optional(value.as_ref()),
        };
        Self {
            family: family.into(),
            disabled: from.disabled,
            labels: from.labels.iter().map(label).collect(),
        }
    }
}
