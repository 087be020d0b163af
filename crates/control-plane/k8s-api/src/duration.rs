//! Durations of Istio's kinds, in Go's format: `1h30m`, `1.5s`, `20ms`.

use std::time::Duration;

/// Units of a duration, with their length in nanoseconds.
const DURATION_UNITS: [(&str, f64); 6] = [
    ("h", 3600e9),
    ("m", 60e9),
    ("s", 1e9),
    ("ms", 1e6),
    ("us", 1e3),
    ("ns", 1.0),
];

/// Parses a duration, rounded to nanoseconds; `None` if the text is not a duration, has a sign or
/// an exponent, or lacks a unit.
pub fn parse_istio_duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut nanoseconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at_checked(digits)?;
        let letters = after.find(|c: char| !c.is_ascii_alphabetic());
        let (unit, after) = after.split_at_checked(letters.unwrap_or(after.len()))?;
        let (_, size) = DURATION_UNITS.iter().find(|(name, _)| *name == unit)?;
        // Only digits and a point: neither signs nor exponents.
        nanoseconds += number.parse::<f64>().ok()? * size;
        rest = after;
    }
    (!text.is_empty()).then(|| Duration::try_from_secs_f64(nanoseconds / 1e9).ok())?
}
