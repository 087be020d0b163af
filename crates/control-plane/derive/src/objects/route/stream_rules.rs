//! Parsing of the rules of TCPRoutes and TLSRoutes. An unsupported part refuses all connections that the route is for.

use std::collections::BTreeMap;

use ambit_k8s_api::gateway::{BackendRef, HttpBackendRef, StreamRouteRule};
use ambit_model::ArcStr;
use serde_json::Value;

use crate::{
    objects::route::{
        backends::{BackendInput, WeightedTraffic},
        unsupported::{UNSUPPORTED_VALUE, UnsupportedPart},
    },
    problem::{FieldError, Note},
};

/// Maximum number of `hostnames` of a route.
pub(crate) const MAX_HOSTNAMES: usize = 1024;

/// Parsed rules of a TCPRoute or TLSRoute.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StreamInput {
    /// Server names (SNI) in lower case; all connections if empty.
    pub(crate) hostnames: Vec<ArcStr>,
    pub(crate) backends: Vec<BackendInput>,
    pub(crate) unsupported_part: Option<UnsupportedPart>,
}

impl StreamInput {
    /// Returns the rules of an invalid route, which refuse connections with its server names.
    pub(crate) fn unusable(hostnames: &[String]) -> Self {
        Self {
            hostnames: hostnames
                .iter()
                .filter_map(|one| parse_server_name(one))
                .collect(),
            backends: Vec::new(),
            unsupported_part: Some(UnsupportedPart {
                reason: UNSUPPORTED_VALUE,
                text: arcstr::literal!("the route cannot be used as it is written"),
            }),
        }
    }

    pub(crate) fn backends(&self) -> impl Iterator<Item = &BackendInput> {
        self.backends.iter()
    }

    pub(crate) fn unsupported(&self) -> Option<&UnsupportedPart> {
        self.unsupported_part.as_ref()
    }
}

/// Returns a valid server name or wildcard (`*.` and a name) in lower case; `None` if it is neither.
pub(crate) fn parse_server_name(text: &str) -> Option<ArcStr> {
    let name = text.strip_prefix("*.").unwrap_or(text);
    let is_address = name.parse::<std::net::IpAddr>().is_ok();
    let name_in_lower_case = name.to_ascii_lowercase();
    let is_name = ambit_k8s_api::is_dns_name(&name_in_lower_case, 253);
    (is_name && !is_address).then(|| text.to_ascii_lowercase().into())
}

/// Parser of the rules of a TCPRoute or TLSRoute.
pub(crate) struct StreamRuleReader<'a> {
    notes: &'a mut Vec<Note>,
    unsupported: Option<UnsupportedPart>,
}

impl<'a> StreamRuleReader<'a> {
    pub(crate) fn new(notes: &'a mut Vec<Note>) -> Self {
        Self {
            notes,
            unsupported: None,
        }
    }

    pub(crate) fn note_unknown_fields(&mut self, at: &str, other: &BTreeMap<String, Value>) {
        for name in other.keys() {
            let field = format!("{at}.{name}");
            let text = arcstr::format!("{field}: is not supported");
            self.unsupported.get_or_insert(UnsupportedPart {
                reason: UNSUPPORTED_VALUE,
                text,
            });
            let message = "is not supported: connections that the route is for are refused";
            self.notes.push(Note::new(field, message));
        }
    }

    pub(crate) fn read(
        mut self,
        rules: &[StreamRouteRule],
        namespace: &str,
    ) -> Result<StreamInput, FieldError> {
        if rules.len() > 1 {
            let message = "has no effect: of such a route the first rule alone is followed";
            self.notes.push(Note::new("spec.rules[1]", message));
        }
        let mut backends = Vec::new();
        if let Some(rule) = rules.first() {
            let at = "spec.rules[0]";
            self.note_unknown_fields(at, &rule.other);
            for (index, one) in rule.backend_refs.iter().enumerate() {
                let at = format!("{at}.backendRefs[{index}]");
                self.note_unknown_fields(&at, &one.other);
                let one = to_http_backend(one);
                let read = BackendInput::read(
                    &one,
                    namespace,
                    (&at, WeightedTraffic::Connections),
                    Vec::new(),
                    self.notes,
                );
                backends.push(read?);
            }
        }
        Ok(StreamInput {
            hostnames: Vec::new(),
            backends,
            unsupported_part: self.unsupported,
        })
    }
}

/// Converts a backend to the type of HTTP backends, without filters.
fn to_http_backend(from: &BackendRef) -> HttpBackendRef {
    HttpBackendRef {
        group: from.group.clone(),
        kind: from.kind.clone(),
        namespace: from.namespace.clone(),
        name: from.name.clone(),
        port: from.port,
        weight: from.weight,
        ..HttpBackendRef::default()
    }
}
