//! Helpers to read fields of the MeshConfig.

use serde_json::{Map, Value};

use crate::problem::{FieldError, Note};

/// Key of the MeshConfig in its ConfigMap.
pub(crate) const MESH_CONFIG_KEY: &str = "mesh";

/// Builds an error or note for a field of the MeshConfig.
pub(crate) fn field_error(at: &str, message: impl Into<String>) -> FieldError {
    let dot = if at.is_empty() { "" } else { "." };
    FieldError::new(format!("data.{MESH_CONFIG_KEY}{dot}{at}"), message)
}

/// Returns the value as a map; an absent value is an empty map.
pub(crate) fn as_map<'a>(
    at: &str,
    value: Option<&'a Value>,
) -> Result<&'a Map<String, Value>, FieldError> {
    static NONE: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
    match value {
        None | Some(Value::Null) => Ok(&NONE),
        Some(Value::Object(map)) => Ok(map),
        Some(_) => Err(field_error(at, "is not a map")),
    }
}

/// Adds a note for each field of a map that is not in `read`, since it has no effect.
pub(crate) fn note_unread_fields(
    at: &str,
    all: &Map<String, Value>,
    read: &[&str],
    notes: &mut Vec<Note>,
) {
    for name in all.keys().filter(|name| !read.contains(&name.as_str())) {
        notes.push(field_error(
            &format!("{at}.{name}"),
            "has no effect: node proxies and waypoints have no such setting",
        ));
    }
}
