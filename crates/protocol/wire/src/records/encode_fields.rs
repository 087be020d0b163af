//! Encoding functions that several record codecs use.

use std::time::Duration;

use ambit_model as model;

/// Encodes a duration in milliseconds, rounded up, since zero encodes the absence of a duration.
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

/// Encodes an optional text; an empty field means no value.
pub(super) fn encode_optional(text: Option<&model::ArcStr>) -> String {
    text.map(ToString::to_string).unwrap_or_default()
}
