//! Converts log records to OTLP.
//!
//! The level becomes the severity by OpenTelemetry's data model of logs (`SeverityNumber`: 1, 5, 9, 13, 17), the
//! message becomes the body, and the fields become attributes in addition to `target`, the module that logged.

use ambit_rt::logging::{FieldValue, LogRecord};

use crate::message::{
    ExportLogs, Log, Resource, ResourceLogs, Scope, ScopeLogs, Value, any_value, attribute,
    nanoseconds,
};

/// Attribute with the module of the program that logged.
const TARGET_ATTRIBUTE: &str = "target";

/// Encodes an export request with log records.
pub(crate) fn export_request(
    records: &[LogRecord],
    resource: &Resource,
    scope: &Scope,
) -> ExportLogs {
    ExportLogs {
        resource_logs: vec![ResourceLogs {
            resource: Some(resource.clone()),
            scope_logs: vec![ScopeLogs {
                scope: Some(scope.clone()),
                log_records: records.iter().map(to_log_record).collect(),
            }],
        }],
    }
}

fn to_log_record(record: &LogRecord) -> Log {
    let (severity_number, severity_text) = match record.level {
        tracing::Level::TRACE => (1, "trace"),
        tracing::Level::DEBUG => (5, "debug"),
        tracing::Level::INFO => (9, "info"),
        tracing::Level::WARN => (13, "warn"),
        tracing::Level::ERROR => (17, "error"),
    };
    let time = nanoseconds(record.time);
    let target = attribute(TARGET_ATTRIBUTE, Value::Text(record.target.to_owned()));
    let fields = record.fields.iter().map(|(name, value)| {
        let value = match value {
            FieldValue::Text(text) => Value::Text(text.clone()),
            FieldValue::Integer(number) => Value::Int(*number),
            FieldValue::Float(number) => Value::Double(*number),
            FieldValue::Bool(is_true) => Value::Bool(*is_true),
        };
        attribute(name, value)
    });
    Log {
        time_unix_nano: time,
        observed_time_unix_nano: time,
        severity_number,
        severity_text: severity_text.to_owned(),
        body: Some(any_value(Value::Text(record.message.clone()))),
        attributes: std::iter::once(target).chain(fields).collect(),
    }
}

/// Returns the approximate memory of a queued record.
pub(crate) fn record_bytes(record: &LogRecord) -> usize {
    let fields = record.fields.iter().map(|(_, value)| match value {
        FieldValue::Text(text) => text.len(),
        _ => 0,
    });
    let fixed = size_of::<LogRecord>() + record.fields.len() * size_of::<(&str, FieldValue)>();
    fixed + record.message.len() + fields.sum::<usize>()
}
