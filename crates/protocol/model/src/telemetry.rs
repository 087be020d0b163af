//! Telemetry of requests and connections at a waypoint: metrics, access logs and traces, with their collectors.

use std::time::Duration;

use arcstr::ArcStr;
use serde::Serialize;

use crate::{NamespacedHostname, json};

/// Traffic to which a telemetry record applies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum TelemetryScope {
    /// All traffic of the waypoint to which no more specific record applies.
    #[default]
    Waypoint,
    /// Services and pods of a namespace.
    Namespace(ArcStr),
    /// Requests to a service.
    Service(NamespacedHostname),
}

/// Merged telemetry settings for the traffic to a target.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaypointTelemetry {
    /// Traffic to which the settings apply.
    pub scope: TelemetryScope,
    /// Tracing settings; `None` creates no spans and forwards trace headers unchanged.
    pub tracing: Option<TelemetryTracing>,
    /// Access logs, replacing the waypoint's default; `None` keeps the default.
    pub logs: Option<Vec<TelemetryLog>>,
    /// Overrides of metrics.
    pub metrics: Vec<TelemetryMetric>,
}

/// OpenTelemetry collector of an extension provider in MeshConfig.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OtlpCollector {
    /// Service of the collector.
    pub service: NamespacedHostname,
    /// Port of the service.
    pub port: u16,
    /// Path of OTLP over HTTP; `None` selects OTLP over gRPC.
    pub http_path: Option<ArcStr>,
    /// Timeout of an export; `None` applies the waypoint's default.
    #[serde(serialize_with = "json::optional_duration")]
    pub timeout: Option<Duration>,
    /// Headers of exports by lower-case name.
    #[serde(serialize_with = "json::secret_values")]
    pub headers: Vec<(ArcStr, ArcStr)>,
}

/// Tracing settings of requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TelemetryTracing {
    /// Collector that receives spans.
    pub collector: OtlpCollector,
    /// Number of sampled requests per 10000, for requests without a sampling decision.
    pub sampling: u32,
    /// Whether a UUID in `x-request-id` determines the sampling decision.
    pub by_request_id: bool,
    /// Whether spans carry Istio's tags of source and destination.
    pub istio_tags: bool,
    /// Whether forwarded requests carry the waypoint's trace context; if not, trace headers are forwarded unchanged.
    pub propagates: bool,
    /// Custom tags of spans.
    pub tags: Vec<TelemetryTag>,
    /// Maximum length of a tag whose value comes from a peer, in bytes.
    pub max_tag: u32,
}

/// Custom tag of spans.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TelemetryTag {
    /// Name of the tag.
    pub name: ArcStr,
    /// Source of the tag's value.
    pub value: TelemetryTagValue,
}

/// Source of a tag's value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum TelemetryTagValue {
    /// Fixed text value.
    Literal(ArcStr),
    /// Environment variable of the waypoint, and the default value.
    Environment(ArcStr, ArcStr),
    /// Request header, and the default value.
    Header(ArcStr, ArcStr),
    /// Access-log format string.
    Formatter(ArcStr),
}

/// Access log settings.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TelemetryLog {
    /// Collector that receives the log; `None` writes to standard output.
    pub collector: Option<OtlpCollector>,
    /// Name of the access log, which the collector receives.
    pub name: ArcStr,
    /// Format of log lines.
    pub format: TelemetryFormat,
    /// CEL expression that selects the requests to log.
    pub filter: Option<ArcStr>,
}

/// Format of access-log lines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum TelemetryFormat {
    /// Istio's default text format.
    #[default]
    Default,
    /// Text with Envoy's command operators.
    Text(ArcStr),
    /// JSON object, as text, whose strings contain Envoy's command operators.
    Json(ArcStr),
}

/// Metric family of HTTP requests or TCP connections.
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
    /// All metric families.
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

/// Override of a metric family.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TelemetryMetric {
    /// Metric family to override.
    pub family: TelemetryFamily,
    /// Whether the metric is disabled.
    pub disabled: bool,
    /// Labels with a CEL expression for the value; `None` removes the label.
    pub labels: Vec<(ArcStr, Option<ArcStr>)>,
}
