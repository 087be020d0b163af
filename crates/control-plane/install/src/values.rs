//! Merges chart values (defaults, files and single settings) as Helm does.

use ambit_k8s_api::revisions;
use serde_json::{Map, Value};

use crate::{chart, schema};

/// Reason why chart values are rejected.
#[derive(Debug, thiserror::Error)]
pub enum ValuesError {
    /// A file of values is not valid YAML.
    #[error("{name} is no YAML of values: {cause}")]
    InvalidYaml {
        /// Name of the file.
        name: String,
        /// Cause of the error.
        cause: String,
    },
    /// A `--set` flag has an invalid text.
    #[error("--set {text}: {problem}; write it as path.to.value=value")]
    InvalidSetFlag {
        /// Text of the flag.
        text: String,
        /// Error in the text.
        problem: &'static str,
    },
    /// Values that the chart's schema rejects.
    #[error("values that the chart does not know:\n  {}", .0.join("\n  "))]
    SchemaViolations(Vec<String>),
}

/// Chart values that the user set; later ones override earlier ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValueOverrides(Map<String, Value>);

impl ValueOverrides {
    /// Merges a file of values over the earlier values; errors contain `name`.
    ///
    /// # Errors
    ///
    /// When the file is not a YAML map.
    pub fn add_file(&mut self, name: &str, text: &str) -> Result<(), ValuesError> {
        self.add_layer(parse_values_file(name, text)?);
        Ok(())
    }

    /// Sets single values, as Helm's `--set a.b=c,d=e`. With `strings`, every value is a string.
    ///
    /// # Errors
    ///
    /// When a part has no `=`, or a path is empty or goes through a value.
    pub fn set(&mut self, text: &str, strings: bool) -> Result<(), ValuesError> {
        let wrong = |problem| ValuesError::InvalidSetFlag {
            text: text.to_owned(),
            problem,
        };
        for setting in split_unescaped(text, ',') {
            let (path, value) = setting
                .split_once('=')
                .ok_or_else(|| wrong("there is no '='"))?;
            let path = split_unescaped(path, '.');
            if path.iter().any(String::is_empty) {
                return Err(wrong("a part of the path is empty"));
            }
            let mut layer = Map::new();
            let mut value = if strings {
                Value::String(unescape(value))
            } else {
                parse_scalar(value)
            };
            for key in path.iter().skip(1).rev() {
                value = Value::Object(Map::from_iter([(unescape(key), value)]));
            }
            if let Some(first) = path.first() {
                layer.insert(unescape(first), value);
            }
            merge(&mut self.0, layer, false);
        }
        Ok(())
    }

    /// Merges values over the earlier values.
    pub fn add_layer(&mut self, values: Map<String, Value>) {
        merge(&mut self.0, values, false);
    }

    /// Merges the values of `later` over these values.
    pub fn extend(&mut self, later: Self) {
        merge(&mut self.0, later.0, false);
    }

    /// Returns the user's values merged over the chart's defaults.
    ///
    /// # Errors
    ///
    /// When the chart's schema rejects a value.
    pub fn with_defaults(&self) -> Result<Value, ValuesError> {
        let mut all: Map<String, Value> =
            serde_saphyr::from_str(chart::DEFAULT_VALUES).map_err(|error| {
                ValuesError::InvalidYaml {
                    name: "values.yaml".to_owned(),
                    cause: error.to_string(),
                }
            })?;
        merge(&mut all, self.0.clone(), true);
        let all = Value::Object(all);
        let problems = schema::find_violations(&all);
        if problems.is_empty() {
            Ok(all)
        } else {
            let texts = problems.into_iter().map(|problem| problem.text);
            Err(ValuesError::SchemaViolations(texts.collect()))
        }
    }

    /// Returns the user's values as JSON.
    pub fn into_value(self) -> Value {
        Value::Object(self.0)
    }

    /// Returns the revision of the control plane among the values.
    pub fn revision(&self) -> &str {
        let paths: [&[&str]; 2] = [&["global", "revision"], &["revision"]];
        let set = paths.into_iter().filter_map(|path| self.string_at(path));
        let mut set = set.filter(|name| !name.is_empty());
        set.next().unwrap_or(revisions::DEFAULT_REVISION)
    }

    /// Returns the string at a path, if it is set.
    pub fn string_at(&self, path: &[&str]) -> Option<&str> {
        let (first, rest) = path.split_first()?;
        string_at(self.0.get(*first)?, rest)
    }
}

/// Returns the string at a path of `values`, if it is set.
pub(crate) fn string_at<'a>(values: &'a Value, path: &[&str]) -> Option<&'a str> {
    let found = path.iter().try_fold(values, |value, key| value.get(key));
    found?.as_str()
}

/// Parses a file of values; an empty file has none. Errors contain `name`.
pub(crate) fn parse_values_file(name: &str, text: &str) -> Result<Map<String, Value>, ValuesError> {
    let wrong = |cause: String| ValuesError::InvalidYaml {
        name: name.to_owned(),
        cause,
    };
    let value: Option<Value> =
        serde_saphyr::from_str(text).map_err(|error| wrong(error.to_string()))?;
    match value {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(values)) => Ok(values),
        Some(_) => Err(wrong("it is not a map".to_owned())),
    }
}

/// Merges `over` into `base`: maps key by key, everything else by replacement. With `remove`, null removes a key.
pub(crate) fn merge(base: &mut Map<String, Value>, over: Map<String, Value>, remove: bool) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(Value::Object(below)), Value::Object(above)) => merge(below, above, remove),
            (_, Value::Null) if remove => {
                base.remove(&key);
            }
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
}

/// Parses the value of a `--set` flag: `true`, `12`, `null`, `{a,b}`, or a string.
fn parse_scalar(text: &str) -> Value {
    match text {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        "null" => Value::Null,
        _ => {
            if let Some(items) = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')) {
                let items = split_unescaped(items, ',');
                let items = items.iter().filter(|item| !item.is_empty());
                return Value::Array(items.map(|item| parse_scalar(item)).collect());
            }
            let number = text.parse::<i64>().ok();
            // Helm reads 007 as a string.
            match number.filter(|_| text == "0" || !text.starts_with('0')) {
                Some(number) => Value::from(number),
                None => Value::String(unescape(text)),
            }
        }
    }
}

/// Splits a text at each character `at` that is neither escaped by a backslash nor inside braces.
fn split_unescaped(text: &str, at: char) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut depth = 0_usize;
    let mut escaped = false;
    for c in text.chars() {
        let cut = c == at && depth == 0 && !escaped;
        match c {
            '{' if !escaped => depth += 1,
            '}' if !escaped => depth = depth.saturating_sub(1),
            _ => {}
        }
        escaped = c == '\\' && !escaped;
        if cut {
            parts.push(String::new());
        } else if let Some(last) = parts.last_mut() {
            last.push(c);
        }
    }
    parts
}

fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        plain.push(match c {
            '\\' => chars.next().unwrap_or('\\'),
            c => c,
        });
    }
    plain
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(texts: &[&str]) -> Value {
        let mut overrides = ValueOverrides::default();
        for text in texts {
            overrides.set(text, false).unwrap();
        }
        overrides.into_value()
    }

    #[test]
    fn set_flags_are_parsed_as_by_helm() {
        for (texts, expected) in [
            (&["a.b=c,d=1"][..], json!({"a": {"b": "c"}, "d": 1})),
            (&["a=true", "a=false"], json!({"a": false})),
            (&["a={x,y}"], json!({"a": ["x", "y"]})),
            (&["a={}"], json!({"a": []})),
            (
                &["a.kubernetes\\.io/os=linux"],
                json!({"a": {"kubernetes.io/os": "linux"}}),
            ),
            (&["a=x\\,y"], json!({"a": "x,y"})),
            (&["a=007,b=0,c=-3"], json!({"a": "007", "b": 0, "c": -3})),
            (&["a=null"], json!({"a": null})),
            (&["a=b=c"], json!({"a": "b=c"})),
        ] {
            assert_eq!(set(texts), expected, "{texts:?}");
        }
        let mut overrides = ValueOverrides::default();
        assert!(overrides.set("a", false).is_err());
        assert!(overrides.set(".a=1", false).is_err());
        overrides.set("a=1", true).unwrap();
        assert_eq!(overrides.into_value(), json!({"a": "1"}));
    }

    #[test]
    fn later_layers_override_and_null_removes() {
        let mut overrides = ValueOverrides::default();
        overrides
            .add_file(
                "a.yaml",
                "global: {hub: one, tag: x}\ncni: {resources: null}",
            )
            .unwrap();
        overrides.set("global.hub=two", false).unwrap();
        let all = overrides.with_defaults().unwrap();
        assert_eq!(all["global"]["hub"], "two");
        assert_eq!(all["global"]["tag"], "x");
        assert_eq!(all["cni"].get("resources"), None);
        assert_eq!(all["meshConfig"]["trustDomain"], "cluster.local");
    }

    #[test]
    fn unknown_value_is_an_error_that_names_it() {
        let mut overrides = ValueOverrides::default();
        overrides
            .set("cni.cniBindir=/x,global.platform=mars", false)
            .unwrap();
        let error = overrides.with_defaults().unwrap_err().to_string();
        assert!(error.contains("cni.cniBindir"), "{error}");
        assert!(error.contains("cniBinDir"), "{error}");
        assert!(error.contains("global.platform"), "{error}");
    }

    #[test]
    fn files_must_be_maps() {
        let mut overrides = ValueOverrides::default();
        assert!(overrides.add_file("a", "").is_ok());
        assert!(overrides.add_file("a", "[1]").is_err());
        assert!(overrides.add_file("a", "a: [").is_err());
    }
}
