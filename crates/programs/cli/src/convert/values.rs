//! Values as Istio and the Gateway API write them.

use serde::Serialize;
use serde_json::Value;

/// Milliseconds of a duration as Istio writes it: `1h30m`, `1.5s`, `20ms`.
pub(super) fn milliseconds(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut all = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(end);
        let number: f64 = number.parse().ok()?;
        let end = after
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        all += number
            * match unit {
                "ms" => 1.0,
                "s" => 1_000.0,
                "m" => 60_000.0,
                "h" => 3_600_000.0,
                _ => return None,
            };
        rest = after;
    }
    let is_fit = !text.is_empty() && all.fract() == 0.0 && all < 1e12;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "whole, not negative, and below 1e12"
    )]
    is_fit.then_some(all as u64)
}

#[expect(clippy::cast_possible_truncation, reason = "at most a million")]
pub(super) fn whole_number(value: f64) -> i32 {
    value as i32
}

/// A text as a regular expression that matches it.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if !character.is_alphanumeric() && !matches!(character, '-' | '_' | ' ') {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

/// JSON of a value, without what is empty.
pub(super) fn plain(value: &impl Serialize) -> Value {
    without_empty(serde_json::to_value(value).unwrap_or_default())
}

pub(super) fn without_empty(value: Value) -> Value {
    match value {
        Value::Object(map) => map
            .into_iter()
            .map(|(key, value)| (key, without_empty(value)))
            .filter(|(_, value)| match value {
                Value::Null => false,
                Value::Array(items) => !items.is_empty(),
                Value::Object(map) => !map.is_empty(),
                _ => true,
            })
            .collect(),
        Value::Array(items) => items.into_iter().map(without_empty).collect(),
        other => other,
    }
}
