//! Renders protobuf messages in proto3's JSON mapping, for all sections of an Envoy dump.

use std::time::Duration;

use serde_json::{Map, Value, json};

/// Prefix of the type URLs of protobuf messages.
const TYPE_PREFIX: &str = "type.googleapis.com/";

/// Text that replaces a redacted credential.
const REDACTED: &str = "[redacted]";
/// Names of headers whose values are credentials.
const CREDENTIAL_HEADERS: &[&str] = &[
    "authorization",
    "cookie",
    "proxy-authorization",
    "set-cookie",
    "x-api-key",
];

/// Returns the type URL of a protobuf message type.
pub(super) fn type_url(message: &str) -> String {
    format!("{TYPE_PREFIX}{message}")
}

/// Renders a message as `google.protobuf.Any`, without fields that are null or empty lists.
pub(super) fn any_message(message: &str, fields: Value) -> Value {
    let mut all = Map::new();
    all.insert("@type".to_owned(), type_url(message).into());
    if let Value::Object(fields) = remove_empty_fields(fields) {
        all.extend(fields);
    }
    Value::Object(all)
}

/// Removes fields that are null or empty lists. Empty messages stay, since their presence has a meaning, as in `"ads":
/// {}`.
pub(super) fn remove_empty_fields(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields
                .into_iter()
                .map(|(name, value)| (name, remove_empty_fields(value)));
            let is_set = |(_, value): &(String, Value)| {
                !value.is_null() && value.as_array().is_none_or(|all| !all.is_empty())
            };
            fields.filter(is_set).collect::<Map<_, _>>().into()
        }
        Value::Array(all) => all.into_iter().map(remove_empty_fields).collect(),
        other => other,
    }
}

/// Adds the fields of the JSON object `more` to a message.
pub(super) fn merge_fields(message: &mut Value, more: Value) {
    if let (Value::Object(fields), Value::Object(more)) = (message, more) {
        fields.extend(more);
    }
}

/// Renders a duration as `google.protobuf.Duration`.
pub(super) fn duration(value: Duration) -> Value {
    match value.subsec_nanos() {
        0 => format!("{}s", value.as_secs()),
        nanos => format!("{}.{nanos:09}s", value.as_secs()),
    }
    .into()
}

/// Renders an IP address or hostname with port as `envoy.config.core.v3.Address`.
pub(super) fn socket_address(host: &str, port: u16) -> Value {
    json!({"socket_address": {"address": host, "port_value": port}})
}

/// Renders settings for which Envoy's messages have no field as `envoy.config.core.v3.Metadata`; null without settings.
pub(super) fn ambit_metadata(settings: Value) -> Value {
    match remove_empty_fields(settings) {
        Value::Object(fields) if fields.is_empty() => Value::Null,
        fields => json!({"filter_metadata": {"ambit": fields}}),
    }
}

/// Returns the value of a header, redacted if it is a credential.
pub(super) fn header_value<'a>(name: &str, value: &'a str) -> &'a str {
    let mut credentials = CREDENTIAL_HEADERS.iter();
    if credentials.any(|one| one.eq_ignore_ascii_case(name)) {
        return REDACTED;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_protobufs_json_form() {
        assert_eq!(duration(Duration::ZERO), "0s");
        assert_eq!(duration(Duration::from_millis(1_500)), "1.500000000s");
    }

    #[test]
    fn unset_fields_are_omitted_and_empty_messages_kept() {
        let message = any_message("a.B", json!({"a": null, "b": [], "c": {"d": null}}));
        assert_eq!(
            message,
            json!({"@type": "type.googleapis.com/a.B", "c": {}})
        );
    }
}
