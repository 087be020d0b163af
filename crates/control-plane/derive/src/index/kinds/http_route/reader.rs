//! Reading rules: what cannot be done is noted, and makes the rule unusable.

use std::collections::BTreeMap;

use ambit_model::ArcStr;
use serde_json::Value;

use crate::problem::Note;

/// The reason of a condition: the API has it, and this mesh has not.
pub(super) const UNSUPPORTED_VALUE: &str = "UnsupportedValue";

/// What of a rule cannot be done.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Unsupported {
    /// For a condition.
    pub(super) reason: &'static str,
    pub(super) text: ArcStr,
}

/// Reads one rule.
pub(super) struct Reader<'a> {
    pub(super) notes: &'a mut Vec<Note>,
    /// The first thing in the rule that is not supported.
    pub(super) unsupported: Option<Unsupported>,
}

impl Reader<'_> {
    pub(super) fn unsupported(&mut self, field: String, what: &str) {
        self.refuse(UNSUPPORTED_VALUE, field, what);
    }

    /// The rule is not followed: its requests are answered with an error.
    pub(super) fn refuse(&mut self, reason: &'static str, field: String, what: &str) {
        let text = arcstr::format!("{field}: {what}");
        self.unsupported.get_or_insert(Unsupported { reason, text });
        let message = format!("{what}: requests that the rule matches are answered with 500");
        self.notes.push(Note::new(field, message));
    }

    pub(super) fn unknown(&mut self, at: &str, other: &BTreeMap<String, Value>) {
        for name in other.keys() {
            self.unsupported(format!("{at}.{name}"), "is not supported");
        }
    }

    /// Something that the user should know, and that changes nothing else.
    pub(super) fn remark(&mut self, field: String, message: impl Into<String>) {
        self.notes.push(Note::new(field, message));
    }
}

/// Whether a text can be a header's name (RFC 9110, section 5.6.2).
pub(super) fn is_token(text: &str) -> bool {
    let is_symbol = |byte: u8| b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || is_symbol(byte))
}
