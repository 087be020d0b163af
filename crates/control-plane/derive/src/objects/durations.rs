//! Durations as the Gateway API writes them (GEP-2257): `1h30m`, `500ms`.

use std::time::Duration;

/// Units of a duration, with their length in milliseconds. A duration has each unit at most once, in this order.
const DURATION_UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Parses a duration; `None` for zero.
///
/// # Errors
///
/// If the text is not a duration.
pub(crate) fn read(text: &str) -> Result<Option<Duration>, String> {
    let broken = || {
        format!(
            "{text:?} is no duration: numbers of up to 5 digits, each with h, m, s or ms, as in 1m30s"
        )
    };
    let mut rest = text;
    let mut units = DURATION_UNITS.iter();
    let mut total = 0_u64;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at_checked(digits).ok_or_else(broken)?;
        let letters = after.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, after) = after.split_at_checked(letters).ok_or_else(broken)?;
        let (_, milliseconds) = units.find(|(name, _)| *name == unit).ok_or_else(broken)?;
        let number: u64 = match digits {
            1..=5 => number.parse().map_err(|_| broken())?,
            _ => return Err(broken()),
        };
        total += number * milliseconds;
        rest = after;
    }
    if text.is_empty() {
        return Err(broken());
    }
    Ok((total > 0).then(|| Duration::from_millis(total)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_the_gateway_api_writes_them() {
        for (text, milliseconds) in [
            ("1h", 3_600_000),
            ("1m30s", 90_000),
            ("500ms", 500),
            ("1s5ms", 1005),
            ("99999h", 359_996_400_000),
        ] {
            let expected = Ok(Some(Duration::from_millis(milliseconds)));
            assert_eq!(read(text), expected, "{text}");
        }
        assert_eq!(read("0s"), Ok(None));
        for text in [
            "", "1", "s", "1.5s", "-1s", "1s1m", "1s1s", "1d", "100000h", " 1s", "1ü",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
