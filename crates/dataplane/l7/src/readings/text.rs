//! Compares patterns with bytes, and rewrites the texts of patterns.

use ambit_model::StringMatch;

/// Whether bytes, which may be invalid UTF-8, match a pattern.
pub(super) fn matches_bytes(pattern: &StringMatch, bytes: &[u8]) -> bool {
    match pattern {
        StringMatch::Exact(exact) => bytes == exact.as_bytes(),
        StringMatch::Prefix(prefix) => bytes.starts_with(prefix.as_bytes()),
        StringMatch::Suffix(suffix) => bytes.ends_with(suffix.as_bytes()),
        StringMatch::Presence => !bytes.is_empty(),
    }
}

/// Returns a pattern of the same kind, with its text replaced by the result of `map`.
pub(super) fn map_text(pattern: &StringMatch, map: impl Fn(&str) -> String) -> StringMatch {
    match pattern {
        StringMatch::Exact(text) => StringMatch::Exact(map(text).into()),
        StringMatch::Prefix(text) => StringMatch::Prefix(map(text).into()),
        StringMatch::Suffix(text) => StringMatch::Suffix(map(text).into()),
        StringMatch::Presence => StringMatch::Presence,
    }
}
