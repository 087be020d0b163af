//! Parser of rules for HTTP requests, which collects notes and unsupported values.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{
    objects::route::unsupported::{UNSUPPORTED_VALUE, UnsupportedPart},
    problem::{FieldError, Note},
};

/// Maximum number of rules of a route, and of matches in all its rules.
const MAX_RULES: usize = 1024;
const MAX_MATCHES: usize = 8192;

/// Parser of the rules of a route, used for one rule after the other.
pub(crate) struct RuleReader<'a> {
    pub(crate) notes: &'a mut Vec<Note>,
    /// First unsupported part of the current rule.
    pub(crate) unsupported: Option<UnsupportedPart>,
    /// Whether path prefixes match text rather than whole segments, as in VirtualServices.
    pub(crate) matches_text_prefixes: bool,
}

impl<'a> RuleReader<'a> {
    pub(crate) fn new(notes: &'a mut Vec<Note>) -> Self {
        Self {
            notes,
            unsupported: None,
            matches_text_prefixes: false,
        }
    }

    /// Creates a parser whose path prefixes match text rather than whole segments.
    pub(crate) fn with_text_prefixes(notes: &'a mut Vec<Note>) -> Self {
        Self {
            matches_text_prefixes: true,
            ..Self::new(notes)
        }
    }

    /// Begins the next rule; `unsupported` is an unsupported part of the route that affects all its rules.
    pub(crate) fn begin_rule(&mut self, unsupported: Option<&UnsupportedPart>) {
        self.unsupported = unsupported.cloned();
    }

    pub(crate) fn take_unsupported(&mut self) -> Option<UnsupportedPart> {
        self.unsupported.take()
    }

    /// Checks that a route has not too many rules and matches.
    pub(crate) fn check_size(rules: usize, matches: usize) -> Result<(), FieldError> {
        if rules > MAX_RULES || matches > MAX_MATCHES {
            let message = format!(
                "{rules} rules with {matches} matches are too many: at most {MAX_RULES} with {MAX_MATCHES}"
            );
            return Err(FieldError::new("spec.rules", message));
        }
        Ok(())
    }

    pub(crate) fn mark_unsupported(&mut self, field: String, what: &str) {
        self.mark_unusable(UNSUPPORTED_VALUE, field, what);
    }

    /// Marks the rule as unusable because of a value, with a note: its requests are answered with an error.
    pub(crate) fn mark_unusable(&mut self, reason: &'static str, field: String, what: &str) {
        let text = arcstr::format!("{field}: {what}");
        self.unsupported
            .get_or_insert(UnsupportedPart { reason, text });
        let message = format!("{what}: requests that the rule matches are answered with 500");
        self.notes.push(Note::new(field, message));
    }

    pub(crate) fn note_unknown_fields(&mut self, at: &str, other: &BTreeMap<String, Value>) {
        for name in other.keys() {
            self.mark_unsupported(format!("{at}.{name}"), "is not supported");
        }
    }

    /// Adds a note without marking the rule as unusable.
    pub(crate) fn add_note(&mut self, field: String, message: impl Into<String>) {
        self.notes.push(Note::new(field, message));
    }
}

/// Whether a string is an HTTP token (RFC 9110, section 5.6.2), as header names are.
pub(crate) fn is_token(text: &str) -> bool {
    let is_symbol = |byte: u8| b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || is_symbol(byte))
}
