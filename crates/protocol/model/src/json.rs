//! JSON of waypoint records for config dumps: names as strings, durations with units, secrets redacted.

use std::{collections::BTreeMap, time::Duration};

use arcstr::ArcStr;
use serde::{Serialize, Serializer};

use crate::{
    GatewayName, NamespacedHostname, PolicyKey, RouteName, ServiceAccountMatch, StringMatch,
};

/// Placeholder for a redacted secret.
const REDACTED: &str = "(secret)";

macro_rules! as_text {
    ($($name:ident),*) => {
        $(
            impl Serialize for $name {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    serializer.collect_str(self)
                }
            }
        )*
    };
}

as_text!(GatewayName, NamespacedHostname, PolicyKey, RouteName);

impl Serialize for ServiceAccountMatch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}/{}", self.namespace, self.service_account))
    }
}

impl Serialize for StringMatch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Exact(text) => serializer.serialize_str(text),
            Self::Prefix(text) => serializer.collect_str(&format_args!("{text}*")),
            Self::Suffix(text) => serializer.collect_str(&format_args!("*{text}")),
            Self::Presence => serializer.serialize_str("*"),
        }
    }
}

pub(crate) fn duration<S: Serializer>(of: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{of:?}"))
}

pub(crate) fn optional_duration<S: Serializer>(
    duration_or_none: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match duration_or_none {
        Some(of) => duration(of, serializer),
        None => serializer.serialize_none(),
    }
}

/// Serializes a secret as the redaction placeholder, or as null if it is empty.
pub(crate) fn secret<T: AsRef<[u8]>, S: Serializer>(
    secret_value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match secret_value.as_ref() {
        [] => serializer.serialize_none(),
        _ => serializer.serialize_str(REDACTED),
    }
}

/// Serializes pairs of name and secret value with redacted values.
pub(crate) fn secret_values<S: Serializer>(
    pairs: &[(ArcStr, ArcStr)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(name, _)| (name, REDACTED)))
}

/// Serializes a map of secret values with redacted values.
pub(crate) fn secret_map<S: Serializer>(
    map: &BTreeMap<ArcStr, ArcStr>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(map.keys().map(|name| (name, REDACTED)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        HttpProvider, OtlpCollector, RateLimit, WaypointExtension, WaypointGateway, WaypointRecord,
    };

    fn to_json(record: impl Into<WaypointRecord>) -> Value {
        serde_json::to_value(record.into()).unwrap()
    }

    #[test]
    fn secrets_are_redacted() {
        const PASSWORD: &str = "hunter2";
        let pair = || ("name".into(), PASSWORD.into());
        let extension = WaypointExtension {
            pull_secret: PASSWORD.into(),
            configuration: PASSWORD.into(),
            environment: BTreeMap::from([pair()]),
            ..WaypointExtension::default()
        };
        let collector = OtlpCollector {
            service: NamespacedHostname::new("ns", "otel"),
            port: 4317,
            http_path: None,
            timeout: None,
            headers: vec![pair()],
        };
        let provider = HttpProvider {
            added: vec![pair()],
            ..HttpProvider::default()
        };
        for value in [
            to_json(extension),
            serde_json::to_value(collector).unwrap(),
            serde_json::to_value(provider).unwrap(),
        ] {
            let text = value.to_string();
            assert!(!text.contains(PASSWORD), "{text}");
            assert!(text.contains(r#""name":"(secret)""#), "{text}");
        }
    }

    #[test]
    fn names_and_durations_are_strings() {
        let limit = RateLimit {
            key: PolicyKey::from_resource_name("ns/l"),
            services: vec![NamespacedHostname::new("ns", "host")],
            ..RateLimit::default()
        };
        let shown = to_json(limit);
        assert_eq!(shown["key"], "ns/l");
        assert_eq!(shown["services"], json!(["ns/host"]));
        let gateway = serde_json::to_value(WaypointGateway::default()).unwrap();
        assert_eq!(gateway["trustedProxies"], 0);
    }
}
