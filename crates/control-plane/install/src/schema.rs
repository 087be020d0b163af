//! Validates chart values by the chart's schema, with the keywords of JSON Schema that the schema uses.

use regex::Regex;
use serde_json::Value;

use crate::chart;

/// Chart value that the schema rejects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaViolation {
    /// Keys on the path to the value, or to the list that contains it.
    pub path: Vec<String>,
    /// Path and reason, as text for people.
    pub text: String,
    /// Whether the chart has no such value; otherwise the value is invalid.
    pub is_unknown: bool,
}

/// Returns a violation for each chart value that the schema rejects.
pub fn find_violations(values: &Value) -> Vec<SchemaViolation> {
    let mut problems = Vec::new();
    match serde_json::from_str(chart::VALUES_SCHEMA) {
        Ok(root) => validate_value(&root, &root, values, &ValuePath::default(), &mut problems),
        Err(error) => ValuePath::default().report(
            format!("the chart's schema cannot be read: {error}"),
            &mut problems,
        ),
    }
    problems
}

/// Path of a value in the document, as keys and as text.
#[derive(Clone, Debug, Default)]
struct ValuePath {
    path: Vec<String>,
    text: String,
}

impl ValuePath {
    fn member_path(&self, key: &str) -> Self {
        let mut path = self.path.clone();
        path.push(key.to_owned());
        let text = match self.text.as_str() {
            "" => key.to_owned(),
            above => format!("{above}.{key}"),
        };
        Self { path, text }
    }

    fn item_path(&self, index: usize) -> Self {
        Self {
            path: self.path.clone(),
            text: format!("{}[{index}]", self.text),
        }
    }

    fn report(&self, text: String, problems: &mut Vec<SchemaViolation>) {
        problems.push(SchemaViolation {
            path: self.path.clone(),
            text,
            is_unknown: false,
        });
    }

    fn report_unknown(&self, nearest: Option<&str>, problems: &mut Vec<SchemaViolation>) {
        let text = match nearest {
            Some(other) => format!("{}: did you mean {other}?", self.text),
            None => self.text.clone(),
        };
        problems.push(SchemaViolation {
            path: self.path.clone(),
            text,
            is_unknown: true,
        });
    }
}

fn validate_value(
    root: &Value,
    schema: &Value,
    value: &Value,
    value_path: &ValuePath,
    problems: &mut Vec<SchemaViolation>,
) {
    let path = &value_path.text;
    let schema = match schema.get("$ref").and_then(Value::as_str) {
        Some(reference) => match root.pointer(reference.trim_start_matches('#')) {
            Some(schema) => schema,
            None => {
                return value_path
                    .report(format!("the chart's schema has no {reference}"), problems);
            }
        },
        None => schema,
    };
    if let Some(types) = schema.get("type") {
        let types: Vec<&str> = match types {
            Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
            one => one.as_str().into_iter().collect(),
        };
        if !types.iter().any(|wanted| has_type(value, wanted)) {
            let text = format!("{path}: {value} is no {}", types.join(" or "));
            return value_path.report(text, problems);
        }
    }
    if let Some(allowed) = schema.get("enum").and_then(Value::as_array)
        && !allowed.contains(value)
    {
        let allowed: Vec<_> = allowed.iter().map(ToString::to_string).collect();
        let text = format!("{path}: {value} is none of {}", allowed.join(", "));
        value_path.report(text, problems);
    }
    if let (Some(pattern), Some(text)) = (
        schema.get("pattern").and_then(Value::as_str),
        value.as_str(),
    ) && !Regex::new(pattern).is_ok_and(|pattern| pattern.is_match(text))
    {
        value_path.report(
            format!("{path}: {value} is not of the form {pattern}"),
            problems,
        );
    }
    if let (Some(minimum), Some(number)) = (
        schema.get("minimum").and_then(Value::as_i64),
        value.as_i64(),
    ) && number < minimum
    {
        value_path.report(format!("{path}: {number} is below {minimum}"), problems);
    }
    if let (Some(items), Some(list)) = (schema.get("items"), value.as_array()) {
        for (index, item) in list.iter().enumerate() {
            validate_value(root, items, item, &value_path.item_path(index), problems);
        }
    }
    if let Some(map) = value.as_object() {
        let known = schema.get("properties").and_then(Value::as_object);
        for (key, value) in map {
            let at = value_path.member_path(key);
            match (
                known.and_then(|known| known.get(key)),
                schema.get("additionalProperties"),
            ) {
                (Some(schema), _) => validate_value(root, schema, value, &at, problems),
                (None, Some(Value::Bool(false))) => {
                    let near = known.into_iter().flatten().map(|(name, _)| name.as_str());
                    at.report_unknown(nearest_name(key, near), problems);
                }
                (None, Some(schema @ Value::Object(_))) => {
                    validate_value(root, schema, value, &at, problems);
                }
                _ => {}
            }
        }
    }
}

fn has_type(value: &Value, wanted: &str) -> bool {
    match wanted {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        _ => false,
    }
}

/// Returns the name that differs from `key` only in case, hyphens and underscores, or that contains it or is contained
/// in it.
fn nearest_name<'a>(key: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| text.to_lowercase().replace(['-', '_'], "");
    let wanted = plain(key);
    let mut part = None;
    for name in names {
        let name_plain = plain(name);
        if name_plain == wanted {
            return Some(name);
        }
        if name_plain.contains(&wanted) || wanted.contains(&name_plain) {
            part = part.or(Some(name));
        }
    }
    part
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_fit_the_schema() {
        let values: Value = serde_saphyr::from_str(chart::DEFAULT_VALUES).unwrap();
        assert_eq!(find_violations(&values), []);
    }

    #[test]
    fn invalid_values_are_named() {
        for (values, problem) in [
            (json!({"globl": {}}), "globl"),
            (json!({"global": {"hub": 1}}), "global.hub: 1 is no string"),
            (
                json!({"cni": {"chained": "yes"}}),
                "cni.chained: \"yes\" is no boolean or null",
            ),
            (
                json!({"cni": {"excludeNamespaces": ["a", 1]}}),
                "cni.excludeNamespaces[1]: 1 is no string",
            ),
            (
                json!({"cni": {"reconcileSeconds": -1}}),
                "cni.reconcileSeconds: -1 is below 0",
            ),
            (
                json!({"revisionTags": ["a", "not_a_label"]}),
                "revisionTags[1]: \"not_a_label\" is not of the form ^[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?$",
            ),
            (
                json!({"global": {"Platform": ""}}),
                "global.Platform: did you mean platform?",
            ),
            (
                json!({"pilot": {"env": {"A": []}}}),
                "pilot.env.A: [] is no string or number or boolean",
            ),
        ] {
            let texts: Vec<_> = find_violations(&values)
                .into_iter()
                .map(|one| one.text)
                .collect();
            assert_eq!(texts, [problem]);
        }
    }
}
