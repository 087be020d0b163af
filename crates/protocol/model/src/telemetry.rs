//! Telemetry of requests and connections at a waypoint: metrics, access logs and traces, with their collectors.

use std::time::Duration;

use arcstr::ArcStr;
use serde::Serialize;

use crate::{NamespacedHostname, json};

/// Target of a telemetry record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum TelemetryScope {
    /// All that goes through the waypoint, but what other records are for.
    #[default]
    Waypoint,
    /// Services and pods of a namespace.
    Namespace(ArcStr),
    /// Requests to a service.
    Service(NamespacedHostname),
}

/// Telemetry of the requests to a target: all that applies to it, merged.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaypointTelemetry {
    /// Of which requests.
    pub scope: TelemetryScope,
    /// Spans; without, headers of traces pass as they are.
    pub tracing: Option<TelemetryTracing>,
    /// Access logs, in place of the waypoint's own setting; `None` leaves that in force.
    pub logs: Option<Vec<TelemetryLog>>,
    /// Changes of metrics.
    pub metrics: Vec<TelemetryMetric>,
}

/// A collector of OpenTelemetry's.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OtlpCollector {
    /// Service of the collector.
    pub service: NamespacedHostname,
    /// Port of the service.
    pub port: u16,
    /// The path of OTLP over HTTP; over gRPC without.
    pub http_path: Option<ArcStr>,
    /// How long a call may take; `None` leaves it to the waypoint.
    #[serde(serialize_with = "json::optional_duration")]
    pub timeout: Option<Duration>,
    /// Headers of calls, names in lower case.
    #[serde(serialize_with = "json::secret_values")]
    pub headers: Vec<(ArcStr, ArcStr)>,
}

/// How requests are traced.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TelemetryTracing {
    /// Collector that receives spans.
    pub collector: OtlpCollector,
    /// Sampled requests of ten thousand, where the sender has made no sampling decision.
    pub sampling: u32,
    /// Whether the name of a request decides, if it can.
    pub by_request_id: bool,
    /// Whether spans have Istio's tags of both ends.
    pub istio_tags: bool,
    /// Whether forwarded requests carry the trace context; else headers of traces pass unchanged.
    pub propagates: bool,
    /// Further tags of spans.
    pub tags: Vec<TelemetryTag>,
    /// Most bytes of a tag that a peer chose.
    pub max_tag: u32,
}

/// A tag of spans.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TelemetryTag {
    /// Name of the tag.
    pub name: ArcStr,
    /// Where its value comes from.
    pub value: TelemetryTagValue,
}

/// Where the value of a tag comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum TelemetryTagValue {
    /// Text that is always the same.
    Literal(ArcStr),
    /// A variable of the waypoint's environment, and its default.
    Environment(ArcStr, ArcStr),
    /// A header of the request, and its default.
    Header(ArcStr, ArcStr),
    /// A format of access logs.
    Formatter(ArcStr),
}

/// One access log.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TelemetryLog {
    /// Collector that receives the log; standard output without.
    pub collector: Option<OtlpCollector>,
    /// A name for it at the collector.
    pub name: ArcStr,
    /// How lines look.
    pub format: TelemetryFormat,
    /// A condition in CEL.
    pub filter: Option<ArcStr>,
}

/// How lines of an access log look.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum TelemetryFormat {
    /// As the waypoint has them by itself: Istio's line.
    #[default]
    Default,
    /// A text with Envoy's operators.
    Text(ArcStr),
    /// The text of a JSON object whose texts have such.
    Json(ArcStr),
}

/// A metric of requests, or of connections that are not HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
#[expect(missing_docs, reason = "the names are Istio's")]
pub enum TelemetryFamily {
    RequestCount,
    RequestDuration,
    RequestSize,
    ResponseSize,
    RequestMessages,
    ResponseMessages,
    OpenedConnections,
    ClosedConnections,
    SentBytes,
    ReceivedBytes,
}

impl TelemetryFamily {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::RequestCount,
        Self::RequestDuration,
        Self::RequestSize,
        Self::ResponseSize,
        Self::RequestMessages,
        Self::ResponseMessages,
        Self::OpenedConnections,
        Self::ClosedConnections,
        Self::SentBytes,
        Self::ReceivedBytes,
    ];
}

/// Changes of a metric.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TelemetryMetric {
    /// Family of the metric.
    pub family: TelemetryFamily,
    /// There is none.
    pub disabled: bool,
    /// Labels with an expression in CEL for the value; without one the label is left out.
    pub labels: Vec<(ArcStr, Option<ArcStr>)>,
}
