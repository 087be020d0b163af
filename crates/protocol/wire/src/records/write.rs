//! Encoding functions that several record types use.

use std::time::Duration;

use ambit_model as model;

/// Converts a duration to milliseconds, rounded up since zero means no duration.
pub(super) fn encode_milliseconds(of: Option<Duration>) -> u64 {
    let whole = |of: Duration| of.as_nanos().div_ceil(1_000_000);
    of.map_or(0, |of| u64::try_from(whole(of)).unwrap_or(u64::MAX))
}

pub(super) fn encode_all<'a, M, W: From<&'a M>>(from: &'a [M]) -> Vec<W> {
    from.iter().map(Into::into).collect()
}

pub(super) fn encode_texts(of: &[model::ArcStr]) -> Vec<String> {
    of.iter().map(ToString::to_string).collect()
}

/// Returns the text of an optional field, which is empty if the field has no value.
pub(super) fn encode_optional(text: Option<&model::ArcStr>) -> String {
    text.map(ToString::to_string).unwrap_or_default()
}
