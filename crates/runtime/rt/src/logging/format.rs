//! Formats the fields of a log event. Any field may contain a peer's text: control characters are escaped, so that
//! one event is one line.

use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};

use crate::ErrorChain;

/// Maximum length of a field's value in bytes; longer ones are truncated.
pub(super) const MAX_VALUE_BYTES: usize = 4096;

/// Formats the fields of an event as `key=value`.
#[derive(Debug)]
pub(super) struct TextFields {
    pub(super) message: String,
    pub(super) fields: String,
}

impl TextFields {
    /// Creates a formatter whose buffer has room for the fields of a connection's log line.
    pub(super) fn new() -> Self {
        Self {
            message: String::with_capacity(64),
            fields: String::with_capacity(512),
        }
    }

    fn push_key(&mut self, field: &Field) {
        if !self.fields.is_empty() {
            self.fields.push(' ');
        }
        self.fields.push_str(field.name().trim_start_matches("r#"));
        self.fields.push('=');
    }

    fn push_unquoted(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        if field.name() == "message" {
            push_escaped(&mut self.message, value);
        } else {
            self.push_key(field);
            push_escaped(&mut self.fields, value);
        }
    }
}

impl Visit for TextFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            push_escaped(&mut self.message, format_args!("{value}"));
        } else {
            self.push_key(field);
            push_escaped(&mut self.fields, format_args!("{:?}", truncate(value)));
        }
    }
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.push_unquoted(field, format_args!("{value:?}"));
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push_unquoted(field, format_args!("{value}"));
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push_unquoted(field, format_args!("{value}"));
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push_unquoted(field, format_args!("{value}"));
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.push_unquoted(field, format_args!("{value}"));
    }
    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.push_unquoted(field, format_args!("{}", ErrorChain(value)));
    }
}

/// Formats the fields of an event as members of a JSON object, `,"key":value` each.
#[derive(Debug, Default)]
pub(super) struct JsonFields {
    pub(super) message: String,
    pub(super) members: String,
}

impl JsonFields {
    fn push_text(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(truncate(value));
        } else {
            self.push_json(field, &json_string(truncate(value)));
        }
    }

    fn push_json(&mut self, field: &Field, json: &str) {
        self.members.push(',');
        self.members
            .push_str(&json_string(field.name().trim_start_matches("r#")));
        self.members.push(':');
        self.members.push_str(json);
    }
}

impl Visit for JsonFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.push_text(field, value);
    }
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.push_text(field, &format!("{value:?}"));
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push_json(field, if value { "true" } else { "false" });
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push_json(field, &value.to_string());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push_json(field, &value.to_string());
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.push_json(
            field,
            &if value.is_finite() {
                value.to_string()
            } else {
                "null".to_owned()
            },
        );
    }
    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.push_text(field, &ErrorChain(value).to_string());
    }
}

/// Encodes a string as JSON.
pub(super) fn json_string(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

pub(super) fn truncate(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_VALUE_BYTES))
        .unwrap_or(text)
}

/// Appends a value with control characters escaped and at most [`MAX_VALUE_BYTES`] bytes long.
fn push_escaped(line: &mut String, value: fmt::Arguments<'_>) {
    struct Escaping<'a> {
        line: &'a mut String,
        left: usize,
    }
    impl fmt::Write for Escaping<'_> {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let fitting = text.get(..text.floor_char_boundary(self.left));
            let mut rest = fitting.unwrap_or_default();
            self.left = if rest.len() < text.len() {
                0
            } else {
                self.left - rest.len()
            };
            while let Some(at) = rest.find(char::is_control) {
                let (plain, from) = rest.split_at(at);
                self.line.push_str(plain);
                let mut chars = from.chars();
                self.line
                    .extend(chars.next().into_iter().flat_map(char::escape_default));
                rest = chars.as_str();
            }
            self.line.push_str(rest);
            Ok(())
        }
    }
    // Writing to a string does not fail; a value whose own formatting fails is left short.
    let _ = Escaping {
        line,
        left: MAX_VALUE_BYTES,
    }
    .write_fmt(value);
}
