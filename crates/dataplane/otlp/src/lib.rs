//! Encodes spans and access-log lines as OTLP messages, and decodes collectors' responses.
//!
//! The message types are those of OpenTelemetry's own crate. The caller provides connections, batching and limits: a
//! waypoint exports over its own upstreams with bounded queues, which the SDK's exporters do not support.
#![forbid(unsafe_code)]

use std::time::{SystemTime, UNIX_EPOCH};

use ambit_observation::span::{Attribute, AttributeValue, Span};
use opentelemetry_proto::tonic::{
    collector::{
        logs::v1::{ExportLogsServiceRequest, ExportLogsServiceResponse},
        trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse},
    },
    common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value::Value},
    logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber},
    resource::v1::Resource as SentResource,
    trace::v1::{
        ResourceSpans, ScopeSpans, Span as SentSpan, Status, span::SpanKind, status::StatusCode,
    },
};
use prost::Message;

#[cfg(test)]
mod tests;

/// gRPC method that exports spans.
pub const TRACES_METHOD: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// gRPC method that exports log records.
pub const LOGS_METHOD: &str = "/opentelemetry.proto.collector.logs.v1.LogsService/Export";
/// Name of the instrumentation scope of all spans and log records.
const SCOPE_NAME: &str = "ambit-waypoint";
/// W3C trace flags of exported spans: the sampled flag is set.
const SAMPLED_FLAG: u32 = 1;

/// OTLP resource: attributes that identify the waypoint in all of its telemetry.
#[derive(Clone, Debug, Default)]
pub struct Resource {
    /// Attributes such as `service.name`.
    pub attributes: Vec<(&'static str, String)>,
}

/// Access-log line, to be exported as a log record.
#[derive(Clone, Debug, PartialEq)]
pub struct LogEntry {
    /// Start time of the request.
    pub time: SystemTime,
    /// Name of the access log, exported as the attribute `log_name`.
    pub log_name: String,
    /// Text of the line.
    pub body: String,
    /// Names and values of the log record's other attributes.
    pub attributes: Vec<(String, String)>,
    /// Trace id and span id of the request, if it is traced.
    pub span: Option<([u8; 16], [u8; 8])>,
}

impl Resource {
    fn to_proto(&self) -> SentResource {
        let all = self.attributes.iter();
        SentResource {
            attributes: all
                .map(|(name, value)| key_value(name, string_value(value)))
                .collect(),
            ..SentResource::default()
        }
    }
}

fn string_value(text: &str) -> Value {
    Value::StringValue(text.to_owned())
}

fn key_value(name: &str, value: Value) -> KeyValue {
    KeyValue {
        key: name.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

fn unix_nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn instrumentation_scope() -> Option<InstrumentationScope> {
    Some(InstrumentationScope {
        name: SCOPE_NAME.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    })
}

fn span_attribute((name, value): &Attribute) -> KeyValue {
    let value = match value {
        AttributeValue::Text(own) => string_value(own),
        AttributeValue::Number(number) => Value::IntValue(*number),
    };
    key_value(name, value)
}

/// Encodes an export request with spans.
pub fn encode_traces(resource: &Resource, spans: &[Span]) -> Vec<u8> {
    let span = |span: &Span| {
        let start = unix_nanoseconds(span.start);
        let took = u64::try_from(span.duration.as_nanos()).unwrap_or(u64::MAX);
        SentSpan {
            trace_id: span.trace_id.bytes().to_vec(),
            span_id: span.id.bytes().to_vec(),
            trace_state: span.trace_state.clone(),
            parent_span_id: span
                .parent
                .map(|id| id.bytes().to_vec())
                .unwrap_or_default(),
            flags: SAMPLED_FLAG,
            name: span.name.clone(),
            kind: SpanKind::Server.into(),
            start_time_unix_nano: start,
            end_time_unix_nano: start.saturating_add(took),
            attributes: span.attributes.iter().map(span_attribute).collect(),
            status: span.is_error.then(|| Status {
                message: String::new(),
                code: StatusCode::Error.into(),
            }),
            ..SentSpan::default()
        }
    };
    let sent = ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(resource.to_proto()),
            scope_spans: vec![ScopeSpans {
                scope: instrumentation_scope(),
                spans: spans.iter().map(span).collect(),
                ..ScopeSpans::default()
            }],
            ..ResourceSpans::default()
        }],
    };
    sent.encode_to_vec()
}

/// Encodes an export request with log records.
pub fn encode_logs(resource: &Resource, lines: &[LogEntry]) -> Vec<u8> {
    let line = |line: &LogEntry| {
        let attributes = line.attributes.iter();
        let attributes = attributes.map(|(name, value)| key_value(name, string_value(value)));
        let name = [key_value("log_name", string_value(&line.log_name))];
        LogRecord {
            time_unix_nano: unix_nanoseconds(line.time),
            severity_number: SeverityNumber::Info.into(),
            body: (!line.body.is_empty()).then(|| AnyValue {
                value: Some(string_value(&line.body)),
            }),
            attributes: name.into_iter().chain(attributes).collect(),
            trace_id: line
                .span
                .map(|(trace, _)| trace.to_vec())
                .unwrap_or_default(),
            span_id: line.span.map(|(_, span)| span.to_vec()).unwrap_or_default(),
            ..LogRecord::default()
        }
    };
    let sent = ExportLogsServiceRequest {
        resource_logs: vec![ResourceLogs {
            resource: Some(resource.to_proto()),
            scope_logs: vec![ScopeLogs {
                scope: instrumentation_scope(),
                log_records: lines.iter().map(line).collect(),
                ..ScopeLogs::default()
            }],
            ..ResourceLogs::default()
        }],
    };
    sent.encode_to_vec()
}

/// Returns how many spans the collector rejected by its response (partial success); zero if the response is malformed.
pub fn rejected_spans(answer: &[u8]) -> u64 {
    let answer = ExportTraceServiceResponse::decode(answer).ok();
    let partial = answer.and_then(|answer| answer.partial_success);
    partial.map_or(0, |partial| partial.rejected_spans.max(0).unsigned_abs())
}

/// Returns how many log records the collector rejected by its response (partial success); zero if the response is
/// malformed.
pub fn rejected_log_records(answer: &[u8]) -> u64 {
    let answer = ExportLogsServiceResponse::decode(answer).ok();
    let partial = answer.and_then(|answer| answer.partial_success);
    partial.map_or(0, |partial| {
        partial.rejected_log_records.max(0).unsigned_abs()
    })
}
