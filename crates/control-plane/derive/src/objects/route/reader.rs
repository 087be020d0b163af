//! Reader of rules for requests, which collects notes and unsupported values.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{
    objects::route::unsupported::{UNSUPPORTED_VALUE, Unsupported},
    problem::{FieldError, Note},
};

/// Most rules of a route, and most matches of all of them together.
const MOST_RULES: usize = 1024;
const MOST_MATCHES: usize = 8192;

/// Reader of the rules of a route, one after the other.
pub(crate) struct Reader<'a> {
    pub(crate) notes: &'a mut Vec<Note>,
    /// First part of the rule that is not supported.
    pub(crate) unsupported: Option<Unsupported>,
    /// Whether prefixes of paths may end within a segment, as in VirtualServices.
    pub(crate) has_text_prefixes: bool,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(notes: &'a mut Vec<Note>) -> Self {
        Self {
            notes,
            unsupported: None,
            has_text_prefixes: false,
        }
    }

    /// A reader of rules in which prefixes of paths may end within a segment.
    pub(crate) fn of_text_prefixes(notes: &'a mut Vec<Note>) -> Self {
        Self {
            has_text_prefixes: true,
            ..Self::new(notes)
        }
    }

    /// Begins a rule of a route, in which something is not supported whatever its rules are.
    pub(crate) fn begin(&mut self, unsupported: Option<&Unsupported>) {
        self.unsupported = unsupported.cloned();
    }

    pub(crate) fn take_unsupported(&mut self) -> Option<Unsupported> {
        self.unsupported.take()
    }

    /// Whether a route is small enough to be followed.
    pub(crate) fn check_size(rules: usize, matches: usize) -> Result<(), FieldError> {
        if rules > MOST_RULES || matches > MOST_MATCHES {
            let message = format!(
                "{rules} rules with {matches} matches are too many: at most {MOST_RULES} with {MOST_MATCHES}"
            );
            return Err(FieldError::new("spec.rules", message));
        }
        Ok(())
    }

    pub(crate) fn unsupported(&mut self, field: String, what: &str) {
        self.refuse(UNSUPPORTED_VALUE, field, what);
    }

    /// Notes a value because of which the rule is not followed: its requests are answered with an error.
    pub(crate) fn refuse(&mut self, reason: &'static str, field: String, what: &str) {
        let text = arcstr::format!("{field}: {what}");
        self.unsupported.get_or_insert(Unsupported { reason, text });
        let message = format!("{what}: requests that the rule matches are answered with 500");
        self.notes.push(Note::new(field, message));
    }

    pub(crate) fn unknown(&mut self, at: &str, other: &BTreeMap<String, Value>) {
        for name in other.keys() {
            self.unsupported(format!("{at}.{name}"), "is not supported");
        }
    }

    /// Adds a note that has no other effect.
    pub(crate) fn remark(&mut self, field: String, message: impl Into<String>) {
        self.notes.push(Note::new(field, message));
    }
}

/// Whether a text can be a header's name (RFC 9110, section 5.6.2).
pub(crate) fn is_token(text: &str) -> bool {
    let is_symbol = |byte: u8| b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || is_symbol(byte))
}
