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

/// Milliseconds as the Gateway API writes a duration (GEP-2257); `None` if it has no form for as many.
pub(super) fn gateway_duration(milliseconds: u64) -> Option<String> {
    let mut rest = milliseconds;
    let mut text = String::new();
    for (unit, of) in [("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)] {
        let count = rest / of;
        rest %= of;
        match count {
            0 => {}
            1..=99_999 => text += &format!("{count}{unit}"),
            _ => return None,
        }
    }
    Some(if text.is_empty() {
        "0s".to_owned()
    } else {
        text
    })
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

fn without_empty(value: Value) -> Value {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_istio_are_written_as_the_gateway_api_has_them() {
        for (text, expected) in [
            ("0s", Some("0s")),
            ("1.5s", Some("1s500ms")),
            ("90s", Some("1m30s")),
            ("1h30m", Some("1h30m")),
            ("150.5s", Some("2m30s500ms")),
            ("20ms", Some("20ms")),
            ("1us", None),
            ("0.0001s", None),
            ("", None),
            ("s", None),
            ("-1s", None),
            ("soon", None),
        ] {
            let read = milliseconds(text).and_then(gateway_duration);
            assert_eq!(read.as_deref(), expected, "{text:?}");
        }
    }
}
