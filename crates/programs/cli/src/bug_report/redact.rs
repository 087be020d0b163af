//! Redaction of values that look like secrets, in objects and texts of the archive.

use serde_json::Value;

const REDACTED: &str = "(redacted)";

/// Removes `managedFields` and the last applied configuration from an object, and redacts values of fields whose names
/// mark secrets.
pub(super) fn redact_object(mut object: Value) -> Value {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
        if let Some(annotations) = metadata
            .get_mut("annotations")
            .and_then(Value::as_object_mut)
        {
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        }
    }
    redact_value(&mut object);
    object
}

/// Fields that are redacted whole, since keys inside them need not look like secrets: configurations of Wasm plugins,
/// and JWKS with symmetric keys.
const SECRET_FIELDS: [&str; 2] = ["pluginConfig", "jwks"];

/// Redacts, in place, values whose key marks a secret, and the `value` beside a `name` that does.
fn redact_value(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(redact_value),
        Value::Object(map) => {
            let named = map
                .get("name")
                .and_then(Value::as_str)
                .is_some_and(is_secret);
            for (key, value) in map {
                if SECRET_FIELDS.contains(&key.as_str()) {
                    *value = REDACTED.into();
                    continue;
                }
                if key == "vmConfig" {
                    redact_environment(value);
                }
                let secret = is_secret(key) || (named && key == "value");
                if secret && value.is_string() {
                    *value = REDACTED.into();
                } else {
                    redact_value(value);
                }
            }
        }
        _ => {}
    }
}

/// Redacts, in the object `of`, the values of a Wasm plugin's environment variables (`vmConfig.env`).
fn redact_environment(of: &mut Value) {
    let all = of.get_mut("env").and_then(Value::as_array_mut);
    for value in all
        .into_iter()
        .flatten()
        .filter_map(|one| one.get_mut("value"))
    {
        *value = REDACTED.into();
    }
}

fn is_secret(name: &str) -> bool {
    // References to secrets are names, and useful.
    const SECRET_WORDS: [&str; 4] = ["password", "passwd", "credential", "api_key"];
    let name = name.to_lowercase();
    SECRET_WORDS.iter().any(|word| name.contains(word))
        || name.ends_with("token")
        || name.ends_with("_secret")
        || name.ends_with("key.pem")
        || name == "tls.key"
}

/// Redacts private keys (PEM) and signed tokens (JWT) in a text.
pub(super) fn redact_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("-----BEGIN ") {
        let (before, from) = rest.split_at(start);
        redact_tokens(before, &mut out);
        let marker = from
            .get(11..)
            .and_then(|after| after.split("-----").next())
            .unwrap_or_default();
        let end = format!("-----END {marker}-----");
        if !marker.ends_with("PRIVATE KEY") {
            out.push_str("-----BEGIN ");
            rest = from.get(11..).unwrap_or_default();
            continue;
        }
        out.push_str(REDACTED);
        // A key that is cut off is still one.
        rest = from
            .find(&end)
            .and_then(|at| from.get(at + end.len()..))
            .unwrap_or_default();
    }
    redact_tokens(rest, &mut out);
    out
}

/// Appends `text` to `out`, with JWTs (`eyJ…` with two dots) redacted.
fn redact_tokens(text: &str, out: &mut String) {
    let part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '=');
    let mut rest = text;
    while let Some(start) = rest.find("eyJ") {
        let (before, from) = rest.split_at(start);
        out.push_str(before);
        let end = from.find(|c| !part(c)).unwrap_or(from.len());
        let (word, after) = from.split_at(end);
        if word.matches('.').count() >= 2 {
            out.push_str(REDACTED);
        } else {
            out.push_str(word);
        }
        rest = after;
    }
    out.push_str(rest);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn plugins_and_key_sets_are_redacted() {
        let plugin = json!({"spec": {
            "url": "oci://registry/tag",
            "pluginConfig": {"header": "hunter2"},
            "vmConfig": {"env": [{"name": "PLACE", "value": "hunter2"}]},
        }});
        let text = redact_object(plugin).to_string();
        assert!(
            !text.contains("hunter2") && text.contains("PLACE"),
            "{text}"
        );
        let rules = json!({"spec": {"jwtRules": [{"issuer": "i", "jwks": "hunter2"}]}});
        let text = redact_object(rules).to_string();
        assert!(
            !text.contains("hunter2") && text.contains("issuer"),
            "{text}"
        );
    }

    #[test]
    fn keys_and_tokens_are_redacted_and_certificates_stay() {
        let key = "-----BEGIN EC PRIVATE KEY-----\nabc\n-----END EC PRIVATE KEY-----";
        let cert = "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----";
        for (before, after) in [
            (format!("a {key} b"), format!("a {REDACTED} b")),
            (format!("{cert}\n{key}"), format!("{cert}\n{REDACTED}")),
            (
                "-----BEGIN PRIVATE KEY-----\nabc".to_owned(),
                REDACTED.to_owned(),
            ),
            (
                "Bearer eyJh.eyJz.c2ln!".to_owned(),
                format!("Bearer {REDACTED}!"),
            ),
            ("eyJust a word".to_owned(), "eyJust a word".to_owned()),
            ("plain".to_owned(), "plain".to_owned()),
        ] {
            assert_eq!(redact_text(&before), after);
        }
    }

    #[test]
    fn values_under_names_of_secrets_are_redacted() {
        let redacted = redact_object(json!({
            "metadata": {"name": "a", "managedFields": [1], "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "{}", "x": "y"}},
            "spec": {
                "env": [{"name": "DB_PASSWORD", "value": "hunter2"}, {"name": "LEVEL", "value": "info"}],
                "secretName": "cacerts",
            },
            "data": {"ca-key.pem": "xyz", "root-cert.pem": "abc"},
        }));
        assert_eq!(
            redacted,
            json!({
                "metadata": {"name": "a", "annotations": {"x": "y"}},
                "spec": {
                    "env": [{"name": "DB_PASSWORD", "value": REDACTED}, {"name": "LEVEL", "value": "info"}],
                    "secretName": "cacerts",
                },
                "data": {"ca-key.pem": REDACTED, "root-cert.pem": "abc"},
            })
        );
    }
}
