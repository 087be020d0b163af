//! Values in the formats of Istio and of the Gateway API.

use ambit_k8s_api::parse_istio_duration;
use serde::Serialize;
use serde_json::Value;

/// Longest duration that is accepted, in milliseconds.
const MAX_DURATION_MILLISECONDS: u64 = 1_000_000_000_000;

/// Parses a duration in Istio's format to milliseconds; `None` if it is invalid, too long, or no whole number of them.
pub(super) fn parse_milliseconds(text: &str) -> Option<u64> {
    let duration = parse_istio_duration(text)?;
    let all = u64::try_from(duration.as_millis()).ok()?;
    let is_whole = duration.subsec_nanos().is_multiple_of(1_000_000);
    (is_whole && all < MAX_DURATION_MILLISECONDS).then_some(all)
}

/// Formats milliseconds as a duration of the Gateway API (GEP-2257); `None` if they exceed the format's range.
pub(super) fn format_gateway_duration(milliseconds: u64) -> Option<String> {
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
pub(super) fn saturating_i32(value: f64) -> i32 {
    value as i32
}

/// Returns a regular expression that matches exactly this text.
pub(super) fn escape_regex(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if !character.is_alphanumeric() && !matches!(character, '-' | '_' | ' ') {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

/// Returns a value as JSON, without empty fields.
pub(super) fn to_value_without_empty(value: &impl Serialize) -> Value {
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
    fn durations_are_converted_to_the_gateway_apis_format() {
        for (text, expected) in [
            ("0s", Some("0s")),
            ("1.5s", Some("1s500ms")),
            ("90s", Some("1m30s")),
            ("1h30m", Some("1h30m")),
            ("150.5s", Some("2m30s500ms")),
            ("20ms", Some("20ms")),
            ("1.001s", Some("1s1ms")),
            ("2000us", Some("2ms")),
            ("1us", None),
            ("0.0001s", None),
            ("", None),
            ("s", None),
            ("-1s", None),
            ("soon", None),
        ] {
            let read = parse_milliseconds(text).and_then(format_gateway_duration);
            assert_eq!(read.as_deref(), expected, "{text:?}");
        }
    }
}
