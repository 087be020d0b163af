//! Parsing of `extensionProviders`: providers that policies and Telemetry objects name, and waypoints call.

use std::collections::BTreeMap;

use ambit_model::ArcStr;
use serde_json::{Map, Value};

use crate::{
    objects::config_map::{
        callee,
        ext_authz::{self, AuthorizationProvider},
        fields::field_error,
    },
    problem::{FieldError, Note},
};

/// Kinds of authorization providers that the mesh supports.
const EXT_AUTHZ_KINDS: [&str; 2] = [ext_authz::GRPC_PROVIDER_KIND, ext_authz::HTTP_PROVIDER_KIND];
/// Kinds of telemetry providers that the mesh supports.
const TELEMETRY_KINDS: [&str; 4] = [
    "envoyFileAccessLog",
    "envoyOtelAls",
    "opentelemetry",
    "prometheus",
];
/// Kinds of providers that Istio has and the mesh does not support.
const UNSUPPORTED_KINDS: [&str; 9] = [
    "zipkin",
    "lightstep",
    "datadog",
    "stackdriver",
    "opencensus",
    "skywalking",
    "envoyHttpAls",
    "envoyTcpAls",
    "sds",
];

/// MeshConfig field that lists the extension providers.
pub(crate) const PROVIDERS_FIELD: &str = "extensionProviders";

/// Parsed entry of `extensionProviders`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ExtensionProvider {
    /// Name of the provider.
    pub(crate) name: ArcStr,
    /// Kind of the provider: the name of the field that has its settings, such as `envoyExtAuthzGrpc`.
    pub(crate) kind: ArcStr,
    /// Settings of the provider: the value of the field that [`Self::kind`] names.
    pub(crate) settings: Map<String, Value>,
    /// Parsed authorization provider; `None` for other kinds.
    pub(crate) authorizer: Option<AuthorizationProvider>,
}

impl ExtensionProvider {
    /// Returns the host of the provider's service, if it has one.
    pub(crate) fn host(&self) -> Option<ArcStr> {
        let service = self.settings.get("service")?.as_str()?;
        Some(callee::host_of_service(service))
    }
}

/// Parses the list of extension providers.
pub(crate) fn read(
    of: Option<&Value>,
    notes: &mut Vec<Note>,
) -> Result<BTreeMap<ArcStr, ExtensionProvider>, FieldError> {
    let mut providers = BTreeMap::new();
    let list = match of {
        None | Some(Value::Null) => return Ok(providers),
        Some(Value::Array(list)) => list,
        Some(_) => return Err(field_error(PROVIDERS_FIELD, "is not a list")),
    };
    for (index, entry) in list.iter().enumerate() {
        let at = format!("{PROVIDERS_FIELD}[{index}]");
        let mut provider = parse_provider(entry, &at, notes)?;
        if EXT_AUTHZ_KINDS.contains(&provider.kind.as_str()) {
            let at = format!("{at}.{}", provider.kind);
            let ExtensionProvider {
                name,
                kind,
                settings,
                ..
            } = &provider;
            provider.authorizer = Some(ext_authz::read(name, kind, settings, &at, notes)?);
        }
        if providers.contains_key(&provider.name) {
            let message = format!("there is another provider with the name {}", provider.name);
            return Err(field_error(&format!("{at}.name"), message));
        }
        providers.insert(provider.name.clone(), provider);
    }
    Ok(providers)
}

fn parse_provider(
    entry: &Value,
    at: &str,
    notes: &mut Vec<Note>,
) -> Result<ExtensionProvider, FieldError> {
    let entry = entry
        .as_object()
        .ok_or_else(|| field_error(at, "is not a provider: give name and one kind"))?;
    let name = entry.get("name").and_then(Value::as_str);
    let name = name
        .filter(|name| !name.is_empty())
        .ok_or_else(|| field_error(&format!("{at}.name"), "is missing"))?;
    let mut kinds = entry.iter().filter(|(key, _)| *key != "name");
    let (kind, settings) = match (kinds.next(), kinds.next()) {
        (Some(kind), None) => kind,
        (None, _) => {
            return Err(field_error(
                at,
                "has no kind: give one, such as envoyExtAuthzGrpc",
            ));
        }
        (Some((one, _)), Some((other, _))) => {
            let message = format!("is both {one} and {other}: give one kind");
            return Err(field_error(at, message));
        }
    };
    let field = format!("{at}.{kind}");
    let settings = match settings {
        Value::Object(settings) => settings.clone(),
        Value::Null => Map::new(),
        _ => return Err(field_error(&field, "is not a map")),
    };
    if !EXT_AUTHZ_KINDS.contains(&kind.as_str()) && !TELEMETRY_KINDS.contains(&kind.as_str()) {
        let message = if UNSUPPORTED_KINDS.contains(&kind.as_str()) {
            "is not supported: what names the provider has no effect"
        } else {
            "is no kind of provider that is known: what names the provider has no effect"
        };
        notes.push(field_error(&field, message));
    }
    Ok(ExtensionProvider {
        name: name.into(),
        kind: kind.as_str().into(),
        settings,
        authorizer: None,
    })
}
