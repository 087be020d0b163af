//! Parsing of numbers and durations of DestinationRules, with their bounds.

use std::time::Duration;

use ambit_k8s_api::parse_istio_duration;

use crate::problem::{FieldError, Note};

/// Maximum duration; a longer one is taken for a mistake.
const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 3600);

/// Builds the note for a field whose value makes waypoints answer requests with 503.
pub(crate) fn refusal_note(at: String, what: &str) -> Note {
    Note::new(at, format!("{what}: requests are answered with 503"))
}

/// Validates a number that must not be negative; the default is 0.
pub(crate) fn parse_count(at: &str, of: Option<i64>) -> Result<u32, FieldError> {
    parse_in_range(at, of, 0, i64::from(i32::MAX), 0)
}

/// Validates that a number is within `least` and `most`; an absent number is `default`.
pub(crate) fn parse_in_range(
    at: &str,
    of: Option<i64>,
    least: i64,
    most: i64,
    default: u32,
) -> Result<u32, FieldError> {
    let Some(number) = of else {
        return Ok(default);
    };
    let wrong = || FieldError::new(at, format!("{number} is not within {least} to {most}"));
    if !(least..=most).contains(&number) {
        return Err(wrong());
    }
    u32::try_from(number).map_err(|_| wrong())
}

/// Validates a decimal number, and returns it in thousandths; an absent number is `default` (in thousandths).
pub(crate) fn parse_thousandths(
    at: &str,
    of: Option<f64>,
    (least, most): (f64, f64),
    default: u32,
) -> Result<u32, FieldError> {
    let Some(number) = of else {
        return Ok(default);
    };
    if !(least..=most).contains(&number) {
        let message = format!("{number} is not within {least} to {most}");
        return Err(FieldError::new(at, message));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "within bounds that are"
    )]
    let thousandths = (number * 1000.0).round() as u32;
    Ok(thousandths)
}

/// Parses a duration of at least 1 ms.
pub(crate) fn parse_duration(at: &str, of: Option<&str>) -> Result<Option<Duration>, FieldError> {
    let Some(duration) = parse_duration_or_zero(at, of)? else {
        return Ok(None);
    };
    if duration < Duration::from_millis(1) {
        return Err(FieldError::new(at, "must be 1ms or longer"));
    }
    Ok(Some(duration))
}

/// Parses a duration, which may be zero.
pub(crate) fn parse_duration_or_zero(
    at: &str,
    of: Option<&str>,
) -> Result<Option<Duration>, FieldError> {
    let Some(text) = of else {
        return Ok(None);
    };
    let wrong = |message: String| FieldError::new(at, message);
    let parsed = match text {
        "0" => Some(Duration::ZERO),
        _ => parse_istio_duration(text),
    };
    let duration = parsed.ok_or_else(|| {
        wrong(format!(
            "{text:?} is no duration: numbers with h, m, s or ms, as in 1m30s, not negative"
        ))
    })?;
    if duration > MAX_DURATION {
        return Err(wrong(format!("{text} is too long: at most 8760h")));
    }
    Ok(Some(duration))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_istio_writes_them() {
        for (text, milliseconds) in [
            ("1h", 3_600_000),
            ("1m30s", 90_000),
            ("1.5s", 1500),
            ("20ms", 20),
            ("8760h", 31_536_000_000),
        ] {
            let read = parse_duration("x", Some(text)).unwrap();
            assert_eq!(read, Some(Duration::from_millis(milliseconds)), "{text}");
        }
        assert_eq!(
            parse_duration_or_zero("x", Some("0s")),
            Ok(Some(Duration::ZERO))
        );
        for text in [
            "",
            "1",
            "s",
            "-1s",
            "1s-1s",
            "+1s",
            "1e3s",
            "1d",
            "8761h",
            "0s",
            "1us",
            " 1s",
            "1.s.",
            "99999999999999999999h",
            "NaNs",
            "..s",
        ] {
            assert!(parse_duration("x", Some(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_are_within_their_bounds() {
        assert_eq!(parse_count("x", None), Ok(0));
        assert_eq!(parse_count("x", Some(7)), Ok(7));
        for wrong in [-1, i64::from(i32::MAX) + 1, i64::MIN] {
            assert!(parse_count("x", Some(wrong)).is_err(), "{wrong}");
        }
        assert_eq!(parse_thousandths("x", Some(1.5), (0.0, 2.0), 0), Ok(1500));
        for wrong in [-0.1, 2.1, f64::NAN, f64::INFINITY] {
            assert!(parse_thousandths("x", Some(wrong), (0.0, 2.0), 0).is_err());
        }
    }
}
