//! Parses durations in arguments: `2s`, `100ms`, or a bare number of milliseconds.

use std::time::Duration;

pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let (number, milliseconds) = if let Some(number) = text.strip_suffix("ms") {
        (number, 1)
    } else if let Some(number) = text.strip_suffix('s') {
        (number, 1000)
    } else {
        (text, 1)
    };
    number
        .parse::<u64>()
        .map(|number| Duration::from_millis(number.saturating_mul(milliseconds)))
        .map_err(|_| {
            format!("{text:?} is no duration: write 2s, 100ms or a number of milliseconds")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit_or_are_milliseconds() {
        assert_eq!(parse("2s").unwrap(), Duration::from_secs(2));
        assert_eq!(parse("100ms").unwrap(), Duration::from_millis(100));
        assert_eq!(parse("250").unwrap(), Duration::from_millis(250));
        assert!(parse("soon").unwrap_err().contains("\"soon\""));
    }
}
