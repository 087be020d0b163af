//! Log records as values, for a receiver beside standard output ([`RecordSink`]), such as an exporter to a collector.
//!
//! A receiver logs, too, and so do the libraries that it sends by. What a task logs under [`unrecorded`] goes to standard
//! output alone: otherwise each export would make records to export.

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

use super::format::{MAX_VALUE, cut};
use crate::ErrorChain;

/// Target of the lines of [`super::write_line`]: access logs that have a format of their own.
const LINE_TARGET: &str = "access";
/// Longest body of a line with a format of its own, in bytes; longer ones are cut.
const MAX_LINE_BYTES: usize = 32 * 1024;
/// Start of the targets of the DNS resolver, whose own tasks are outside of [`unrecorded`].
const RESOLVER_TARGETS: &str = "hickory_";

/// Structured log record.
#[derive(Clone, Debug, PartialEq)]
pub struct LogRecord {
    /// Time of the record.
    pub time: SystemTime,
    /// Severity of the record.
    pub level: Level,
    /// Part of the program that logged it: the scope of its line on standard output.
    pub target: &'static str,
    /// Text of the message.
    pub message: String,
    /// Names and values of its fields.
    pub fields: Vec<(&'static str, FieldValue)>,
}

/// Value of a record's field.
#[derive(Clone, Debug, PartialEq)]
pub enum FieldValue {
    /// A text, at most a few KiB long.
    Text(String),
    /// A whole number.
    Integer(i64),
    /// Floating-point value of a field.
    Float(f64),
    /// A truth value.
    Bool(bool),
}

/// Receiver of log records, called by whoever logs: it must neither wait nor log.
pub trait RecordSink: fmt::Debug + Send + Sync {
    /// Receives a record.
    fn record(&self, record: LogRecord);
}

thread_local! {
    /// Whether the current poll is inside [`unrecorded`].
    static IS_UNRECORDED: Cell<bool> = const { Cell::new(false) };
}

pin_project_lite::pin_project! {
    /// Future of [`unrecorded`].
    struct Unrecorded<F> {
        #[pin]
        future: F,
    }
}

/// Runs a future whose log records go to standard output and to no [`RecordSink`].
pub fn unrecorded<F: Future>(future: F) -> impl Future<Output = F::Output> {
    Unrecorded { future }
}

impl<F: Future> Future for Unrecorded<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        /// Restores the former state, after a panic too.
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

/// Passes a custom-formatted line to a receiver.
pub(super) fn record_line(sink: &dyn RecordSink, line: &str) {
    let line = line.trim_end_matches('\n');
    let cut = line.get(..line.floor_char_boundary(MAX_LINE_BYTES));
    sink.record(LogRecord {
        time: SystemTime::now(),
        level: Level::INFO,
        target: LINE_TARGET,
        message: cut.unwrap_or_default().to_owned(),
        fields: Vec::new(),
    });
}

/// Layer of `tracing-subscriber` that hands events to a receiver.
#[derive(Debug)]
pub(super) struct RecordLayer(pub(super) Arc<dyn RecordSink>);

impl<S: Subscriber> Layer<S> for RecordLayer {
    fn on_event(&self, event: &Event<'_>, _context: layer::Context<'_, S>) {
        let metadata = event.metadata();
        if IS_UNRECORDED.get() || metadata.target().starts_with(RESOLVER_TARGETS) {
            return;
        }
        let mut fields = Fields::default();
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

/// Collects an event's fields.
#[derive(Debug, Default)]
struct Fields {
    message: String,
    fields: Vec<(&'static str, FieldValue)>,
}

impl Fields {
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

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field, format_args!("{}", cut(value)));
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

/// A text of at most [`MAX_VALUE`] bytes.
#[derive(Debug, Default)]
struct BoundedText(String);

impl fmt::Write for BoundedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let left = MAX_VALUE - self.0.len();
        let fitting = text.get(..text.floor_char_boundary(left));
        let fitting = fitting.unwrap_or_default();
        self.0.push_str(fitting);
        if fitting.len() < text.len() {
            return Err(fmt::Error);
        }
        Ok(())
    }
}
