//! OTLP messages for metrics and logs, as far as programs send them
//! (<https://github.com/open-telemetry/opentelemetry-proto>, v1).
//!
//! The messages are declared here, since OpenTelemetry's crate of messages depends on its SDK. The tests decode the
//! encoded messages with that crate.

use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message as _;

/// Aggregation temporality of sums and histograms that count from the start of the process
/// (`AggregationTemporality`).
pub(crate) const CUMULATIVE: i32 = 2;

/// Export request for metrics: `ExportMetricsServiceRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ExportMetrics {
    #[prost(message, repeated, tag = "1")]
    pub(crate) resource_metrics: Vec<ResourceMetrics>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    pub(crate) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) scope_metrics: Vec<ScopeMetrics>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ScopeMetrics {
    #[prost(message, optional, tag = "1")]
    pub(crate) scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Metric {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) description: String,
    #[prost(string, tag = "3")]
    pub(crate) unit: String,
    #[prost(oneof = "Data", tags = "5, 7, 9")]
    pub(crate) data: Option<Data>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Data {
    #[prost(message, tag = "5")]
    Gauge(Gauge),
    #[prost(message, tag = "7")]
    Sum(Sum),
    #[prost(message, tag = "9")]
    Histogram(Histogram),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Gauge {
    #[prost(message, repeated, tag = "1")]
    pub(crate) data_points: Vec<NumberPoint>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Sum {
    #[prost(message, repeated, tag = "1")]
    pub(crate) data_points: Vec<NumberPoint>,
    #[prost(int32, tag = "2")]
    pub(crate) aggregation_temporality: i32,
    #[prost(bool, tag = "3")]
    pub(crate) is_monotonic: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Histogram {
    #[prost(message, repeated, tag = "1")]
    pub(crate) data_points: Vec<HistogramPoint>,
    #[prost(int32, tag = "2")]
    pub(crate) aggregation_temporality: i32,
}

/// Data point of a sum or gauge: `NumberDataPoint`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NumberPoint {
    #[prost(fixed64, tag = "2")]
    pub(crate) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    pub(crate) time_unix_nano: u64,
    #[prost(oneof = "Number", tags = "4, 6")]
    pub(crate) value: Option<Number>,
    #[prost(message, repeated, tag = "7")]
    pub(crate) attributes: Vec<KeyValue>,
}

#[derive(Clone, Copy, PartialEq, prost::Oneof)]
pub(crate) enum Number {
    #[prost(double, tag = "4")]
    Double(f64),
    #[prost(sfixed64, tag = "6")]
    Int(i64),
}

/// Data point of a histogram: `HistogramDataPoint`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HistogramPoint {
    #[prost(fixed64, tag = "2")]
    pub(crate) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    pub(crate) time_unix_nano: u64,
    #[prost(fixed64, tag = "4")]
    pub(crate) count: u64,
    #[prost(double, optional, tag = "5")]
    pub(crate) sum: Option<f64>,
    #[prost(fixed64, repeated, tag = "6")]
    pub(crate) bucket_counts: Vec<u64>,
    #[prost(double, repeated, tag = "7")]
    pub(crate) explicit_bounds: Vec<f64>,
    #[prost(message, repeated, tag = "9")]
    pub(crate) attributes: Vec<KeyValue>,
}

/// Export request for logs: `ExportLogsServiceRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ExportLogs {
    #[prost(message, repeated, tag = "1")]
    pub(crate) resource_logs: Vec<ResourceLogs>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ResourceLogs {
    #[prost(message, optional, tag = "1")]
    pub(crate) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) scope_logs: Vec<ScopeLogs>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ScopeLogs {
    #[prost(message, optional, tag = "1")]
    pub(crate) scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) log_records: Vec<Log>,
}

/// Log record: `LogRecord` of OTLP.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Log {
    #[prost(fixed64, tag = "1")]
    pub(crate) time_unix_nano: u64,
    #[prost(int32, tag = "2")]
    pub(crate) severity_number: i32,
    #[prost(string, tag = "3")]
    pub(crate) severity_text: String,
    #[prost(message, optional, tag = "5")]
    pub(crate) body: Option<AnyValue>,
    #[prost(message, repeated, tag = "6")]
    pub(crate) attributes: Vec<KeyValue>,
    #[prost(fixed64, tag = "11")]
    pub(crate) observed_time_unix_nano: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(crate) attributes: Vec<KeyValue>,
}

/// Instrumentation scope of the telemetry: `InstrumentationScope`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Scope {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 2, 3, 4")]
    pub(crate) value: Option<Value>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Value {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    Int(i64),
    #[prost(double, tag = "4")]
    Double(f64),
}

/// Response to an export request; those for metrics and logs have the same fields.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ExportResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) partial_success: Option<PartialSuccess>,
}

/// Number of data points or log records that a collector rejected, with the reason.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PartialSuccess {
    #[prost(int64, tag = "1")]
    pub(crate) rejected: i64,
    #[prost(string, tag = "2")]
    pub(crate) error_message: String,
}

/// Builds an OTLP attribute.
pub(crate) fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(any_value(value)),
    }
}

pub(crate) fn any_value(value: Value) -> AnyValue {
    AnyValue { value: Some(value) }
}

/// Converts a time to nanoseconds since 1970.
pub(crate) fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the number of data points or log records that a collector's response rejects; none if the response is
/// malformed.
pub fn rejected(body: &[u8]) -> u64 {
    let response = ExportResponse::decode(body).unwrap_or_default();
    let partial = response.partial_success.unwrap_or_default();
    partial.rejected.max(0).unsigned_abs()
}
