//! Environment variables, read once and parsed. Every error names its variable.

use std::{collections::BTreeMap, str::FromStr, time::Duration};

/// Copy of the environment variables, so that configuration is a function of a value.
#[derive(Clone, Debug, Default)]
pub struct Env(BTreeMap<String, String>);

/// Error for an environment variable with an invalid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}={value:?} is not {expected}")]
pub struct EnvError {
    /// Name of the environment variable.
    pub variable: String,
    /// Invalid value of the environment variable.
    pub value: String,
    /// Expected format, for instance "a duration such as 5s or 1h30m".
    pub expected: &'static str,
}

impl Env {
    /// Copies the process's environment, without variables that are not UTF-8.
    pub fn from_process() -> Self {
        Self(
            std::env::vars_os()
                .filter_map(|(key, value)| {
                    Some((key.into_string().ok()?, value.into_string().ok()?))
                })
                .collect(),
        )
    }

    /// Creates an environment from pairs of name and value.
    pub fn from_pairs<K: Into<String>, V: Into<String>>(
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        Self(
            pairs
                .into_iter()
                .map(|(key, value)| (key.into(), value.into()))
                .collect(),
        )
    }

    /// Returns the value of a variable; an empty one counts as set.
    pub fn get(&self, variable: &str) -> Option<&str> {
        self.0.get(variable).map(String::as_str)
    }

    /// Returns the value of a variable, or `default` if it is not set.
    pub fn text(&self, variable: &str, default: &str) -> String {
        self.get(variable).unwrap_or(default).to_owned()
    }

    /// Parses the value of a variable. An empty one counts as not set.
    pub fn parse<T: FromStr>(
        &self,
        variable: &str,
        expected: &'static str,
    ) -> Result<Option<T>, EnvError> {
        self.convert(variable, expected, |text| text.parse().ok())
    }

    /// Parses a boolean variable: `true`, `false`, `1`, `0`, `yes`, `no`, `on` or `off`, in any case.
    pub fn flag(&self, variable: &str) -> Result<Option<bool>, EnvError> {
        self.convert(variable, "true or false", |text| {
            match text.to_ascii_lowercase().as_str() {
                "true" | "1" | "yes" | "on" | "t" => Some(true),
                "false" | "0" | "no" | "off" | "f" => Some(false),
                _ => None,
            }
        })
    }

    /// Parses the value of a variable as a duration, by [`parse_duration`].
    pub fn duration(&self, variable: &str) -> Result<Option<Duration>, EnvError> {
        self.convert(
            variable,
            "a duration such as 5s, 100ms or 1h30m",
            parse_duration,
        )
    }

    /// Iterates over the variables whose names start with `prefix`, without the prefix, sorted by name.
    pub fn with_prefix<'a>(
        &'a self,
        prefix: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a str)> + 'a {
        self.0.iter().filter_map(move |(key, value)| {
            let rest = key.strip_prefix(prefix).filter(|rest| !rest.is_empty())?;
            Some((rest, value.as_str()))
        })
    }

    fn convert<T>(
        &self,
        variable: &str,
        expected: &'static str,
        convert: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, EnvError> {
        let Some(value) = self.get(variable).filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        convert(value.trim()).map(Some).ok_or_else(|| EnvError {
            variable: variable.to_owned(),
            value: value.to_owned(),
            expected,
        })
    }
}

/// Parses a duration in Go's format: decimal numbers each with a unit (`ns`, `us`, `ms`, `s`, `m`, `h`), for instance
/// `1h30m` or `1.5s`. A bare `0` is valid, too.
pub fn parse_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut seconds = 0.0_f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at_checked(digits)?;
        let end = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at_checked(end)?;
        let scale = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        seconds += number.parse::<f64>().ok()? * scale;
        rest = tail;
    }
    if text.is_empty() {
        None
    } else {
        Duration::try_from_secs_f64(seconds).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_writes_them() {
        let millis = |text| parse_duration(text).map(|duration| duration.as_millis());
        assert_eq!(millis("5s"), Some(5_000));
        assert_eq!(millis("24h"), Some(86_400_000));
        assert_eq!(millis("1h30m"), Some(5_400_000));
        assert_eq!(millis("1.5s"), Some(1_500));
        assert_eq!(millis("100ms"), Some(100));
        assert_eq!(millis("0"), Some(0));
        for text in ["", "5", "s", "5 s", "-1s", "1d", "1s2", "1..2s", "1e400h"] {
            assert_eq!(parse_duration(text), None, "{text:?}");
        }
    }

    #[test]
    fn errors_name_the_variable_and_what_was_expected() {
        let env = Env::from_pairs([("SECRET_TTL", "soon"), ("IPV6_ENABLED", "perhaps")]);
        assert_eq!(
            env.duration("SECRET_TTL").unwrap_err().to_string(),
            "SECRET_TTL=\"soon\" is not a duration such as 5s, 100ms or 1h30m"
        );
        assert!(env.flag("IPV6_ENABLED").is_err());
        assert_eq!(env.flag("OTHER"), Ok(None));
    }

    #[test]
    fn typed_values_are_read() {
        let env = Env::from_pairs([
            ("ON", "True"),
            ("EMPTY", ""),
            ("PORT", " 15008 "),
            ("XDS_HEADER_a", "1"),
            ("XDS_HEADER_", "no name"),
        ]);
        assert_eq!(env.flag("ON"), Ok(Some(true)));
        assert_eq!(env.parse::<u16>("PORT", "a port"), Ok(Some(15008)));
        assert_eq!(env.parse::<u16>("EMPTY", "a port"), Ok(None));
        assert_eq!(env.get("EMPTY"), Some(""));
        assert_eq!(
            env.with_prefix("XDS_HEADER_").collect::<Vec<_>>(),
            [("a", "1")]
        );
    }
}
