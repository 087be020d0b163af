//! Parsing of a Gateway's annotation `proxy.istio.io/config`: settings of its waypoint, which override
//! `meshConfig.defaultConfig`.

use ambit_k8s_api::labels::PROXY_CONFIG;
use serde_json::{Map, Value};

use crate::problem::Note;

/// Settings of a Gateway's own `proxy.istio.io/config`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProxyConfig {
    /// Number of trusted proxies in front of the mesh that add to `x-forwarded-for`; `None` for the mesh's default.
    pub(crate) trusted_proxies: Option<u32>,
    /// Whether the annotation is invalid, so that the last valid value stays in effect.
    pub(crate) is_unreadable: bool,
}

/// Parses the annotation `proxy.istio.io/config`. Invalid parts are noted.
pub(crate) fn read(text: Option<&String>, notes: &mut Vec<Note>) -> ProxyConfig {
    let Some(text) = text else {
        return ProxyConfig::default();
    };
    match parse_trusted_proxies(text, notes) {
        Ok(trusted_proxies) => ProxyConfig {
            trusted_proxies,
            is_unreadable: false,
        },
        Err((place, what)) => {
            let message = format!(
                "{what}; the last usable value stays in force, or meshConfig.defaultConfig's if there was none"
            );
            notes.push(Note::new(annotation_field(&place), message));
            ProxyConfig {
                trusted_proxies: None,
                is_unreadable: true,
            }
        }
    }
}

type ParseError = (String, String);

fn parse_trusted_proxies(text: &str, notes: &mut Vec<Note>) -> Result<Option<u32>, ParseError> {
    let config: Option<Value> = serde_saphyr::from_str(text)
        .map_err(|error| (String::new(), format!("is no YAML: {error}")))?;
    let config = parse_map("", config)?;
    note_ignored_fields("", "gatewayTopology", &config, notes);
    let topology = parse_map(".gatewayTopology", config.get("gatewayTopology").cloned())?;
    note_ignored_fields(".gatewayTopology", "numTrustedProxies", &topology, notes);
    let Some(number) = topology.get("numTrustedProxies") else {
        return Ok(None);
    };
    let usable = number
        .as_u64()
        .and_then(|number| u32::try_from(number).ok());
    usable.map(Some).ok_or_else(|| {
        let place = ".gatewayTopology.numTrustedProxies".to_owned();
        (place, format!("{number} is not a number of proxies"))
    })
}

fn parse_map(place: &str, value: Option<Value>) -> Result<Map<String, Value>, ParseError> {
    match value {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(map)) => Ok(map),
        Some(_) => Err((place.to_owned(), "is not a map".to_owned())),
    }
}

/// Adds a note for each field but the one setting that takes effect.
fn note_ignored_fields(place: &str, read: &str, of: &Map<String, Value>, notes: &mut Vec<Note>) {
    for name in of.keys().filter(|name| *name != read) {
        let field = annotation_field(&format!("{place}.{name}"));
        notes.push(Note::new(field, "has no effect on waypoints"));
    }
}

fn annotation_field(place: &str) -> String {
    format!("metadata.annotations[{PROXY_CONFIG}]{place}")
}
