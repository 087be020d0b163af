//! Log records as values, for a receiver in addition to standard output ([`RecordSink`]), such as an exporter to a
//! collector.
//!
//! A receiver logs, too, and so do the libraries with which it sends. Logs of a future under [`unrecorded`] go to
//! standard output alone: otherwise each export would create records to export.

use std::{
    cell::Cell,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::SystemTime,
};

use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer};

use super::format::{MAX_VALUE_BYTES, truncate};
use crate::ErrorChain;

/// Log target of the lines of [`super::write_line`]: access logs that are already formatted.
const ACCESS_LOG_TARGET: &str = "access";
/// Maximum length of an access log line in a record, in bytes; longer lines are truncated.
const MAX_LINE_BYTES: usize = 32 * 1024;
/// Prefix of the log targets of the DNS resolver, whose own tasks are outside of [`unrecorded`].
const RESOLVER_TARGETS: &str = "hickory_";

/// Log record: time, level, target, message and fields.
#[derive(Clone, Debug, PartialEq)]
pub struct LogRecord {
    /// Time of the record.
    pub time: SystemTime,
    /// Severity of the record.
    pub level: Level,
    /// Log target: the module that logged, which is the scope of its line on standard output.
    pub target: &'static str,
    /// Text of the message.
    pub message: String,
    /// Names and values of the record's fields.
    pub fields: Vec<(&'static str, FieldValue)>,
}

/// Value of a record's field.
#[derive(Clone, Debug, PartialEq)]
pub enum FieldValue {
    /// String of at most a few KiB.
    Text(String),
    /// Integer value of a field.
    Integer(i64),
    /// Floating-point value of a field.
    Float(f64),
    /// Boolean value of a field.
    Bool(bool),
}

/// Receiver of log records. Called on the thread that logs, so it must neither wait nor log.
pub trait RecordSink: fmt::Debug + Send + Sync {
    /// Receives one log record.
    fn record(&self, record: LogRecord);
}

thread_local! {
    /// Whether the current poll is inside [`unrecorded`].
    static IS_UNRECORDED: Cell<bool> = const { Cell::new(false) };
}

pin_project_lite::pin_project! {
    /// Future whose log records are passed to no receiver, see [`unrecorded`].
    struct UnrecordedFuture<F> {
        #[pin]
        future: F,
    }
}

/// Runs a future whose log records go to standard output and to no [`RecordSink`].
pub fn unrecorded<F: Future>(future: F) -> impl Future<Output = F::Output> {
    UnrecordedFuture { future }
}

impl<F: Future> Future for UnrecordedFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        /// Guard that restores the previous value of [`IS_UNRECORDED`], also after a panic.
        struct Restore(bool);
        impl Drop for Restore {
            fn drop(&mut self) {
                IS_UNRECORDED.set(self.0);
            }
        }
        let _restore = Restore(IS_UNRECORDED.replace(true));
        self.project().future.poll(cx)
    }
}

/// Passes a line that is already formatted to a receiver of records.
pub(super) fn record_line(sink: &dyn RecordSink, line: &str) {
    let line = line.trim_end_matches('\n');
    let cut = line.get(..line.floor_char_boundary(MAX_LINE_BYTES));
    sink.record(LogRecord {
        time: SystemTime::now(),
        level: Level::INFO,
        target: ACCESS_LOG_TARGET,
        message: cut.unwrap_or_default().to_owned(),
        fields: Vec::new(),
    });
}

/// Layer of `tracing-subscriber` that passes events to a receiver of records.
#[derive(Debug)]
pub(super) struct RecordLayer(pub(super) Arc<dyn RecordSink>);

impl<S: Subscriber> Layer<S> for RecordLayer {
    fn on_event(&self, event: &Event<'_>, _context: layer::Context<'_, S>) {
        let metadata = event.metadata();
        if IS_UNRECORDED.get() || metadata.target().starts_with(RESOLVER_TARGETS) {
            return;
        }
        let mut fields = RecordFields::default();
        event.record(&mut fields);
        self.0.record(LogRecord {
            time: SystemTime::now(),
            level: *metadata.level(),
            target: metadata.target(),
            message: fields.message,
            fields: fields.fields,
        });
    }
}

/// Collects the fields of an event for a record.
#[derive(Debug, Default)]
struct RecordFields {
    message: String,
    fields: Vec<(&'static str, FieldValue)>,
}

impl RecordFields {
    fn push(&mut self, field: &Field, value: FieldValue) {
        self.fields
            .push((field.name().trim_start_matches("r#"), value));
    }

    fn text(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        let mut text = BoundedText::default();
        // A value whose own formatting fails, or that is too long, is left short.
        let _ = fmt::write(&mut text, value);
        if field.name() == "message" {
            self.message = text.0;
        } else {
            self.push(field, FieldValue::Text(text.0));
        }
    }
}

impl Visit for RecordFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field, format_args!("{}", truncate(value)));
    }
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.text(field, format_args!("{value:?}"));
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field, FieldValue::Bool(value));
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push(field, FieldValue::Integer(value));
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        let value = match i64::try_from(value) {
            Ok(value) => FieldValue::Integer(value),
            Err(_) => FieldValue::Text(value.to_string()),
        };
        self.push(field, value);
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.push(field, FieldValue::Float(value));
    }
    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.text(field, format_args!("{}", ErrorChain(value)));
    }
}

/// Text that is truncated to [`MAX_VALUE_BYTES`] bytes.
#[derive(Debug, Default)]
struct BoundedText(String);

impl fmt::Write for BoundedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let left = MAX_VALUE_BYTES - self.0.len();
        let fitting = text.get(..text.floor_char_boundary(left));
        let fitting = fitting.unwrap_or_default();
        self.0.push_str(fitting);
        if fitting.len() < text.len() {
            return Err(fmt::Error);
        }
        Ok(())
    }
}
