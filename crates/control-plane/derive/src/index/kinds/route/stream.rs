//! What TCPRoute and TLSRoute say: where connections go. What is not supported refuses the connections that the
//! route is for.

use std::collections::BTreeMap;

use ambit_k8s_api::{
    TCPRoute, TLSRoute,
    gateway::{BackendRef, HttpBackendRef, ParentReference, StreamRouteRule},
};
use ambit_model::{ArcStr, StreamBackend, StreamRoute};
use serde_json::Value;

use super::{
    AttachedRoute, RouteObject, Rules, UNSUPPORTED_VALUE, Unsupported,
    backends::{BackendInput, Share},
};
use crate::{
    index::{MeshView, kind::field},
    problem::{FieldError, Note},
};

/// Most server names of a route.
const MOST_HOSTNAMES: usize = 1024;

/// Input of a route of connections, as described for the module.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StreamInput {
    /// Server names in lower case; all if empty.
    hostnames: Vec<ArcStr>,
    backends: Vec<BackendInput>,
    unsupported: Option<Unsupported>,
}

impl StreamInput {
    /// Of a route that cannot be used.
    fn unusable(hostnames: &[String]) -> Self {
        Self {
            hostnames: hostnames
                .iter()
                .filter_map(|one| server_name(one))
                .collect(),
            backends: Vec::new(),
            unsupported: Some(Unsupported {
                reason: UNSUPPORTED_VALUE,
                text: arcstr::literal!("the route cannot be used as it is written"),
            }),
        }
    }

    pub(super) fn backends(&self) -> impl Iterator<Item = &BackendInput> {
        self.backends.iter()
    }

    pub(super) fn unsupported(&self) -> Option<&Unsupported> {
        self.unsupported.as_ref()
    }

    /// With its current backends for connections to a parent; without fields of the whole route.
    pub(super) fn resolved(&self, view: &MeshView, route: AttachedRoute<'_>) -> StreamRoute {
        let backend = |from: &BackendInput| {
            let (service, port) = from.to.parts(from.to.find(view, route));
            StreamBackend {
                service: service.map_err(|error| error.text),
                port,
                weight: from.weight,
            }
        };
        StreamRoute {
            hostnames: self.hostnames.clone(),
            backends: self.backends.iter().map(backend).collect(),
            unsupported: self.unsupported.as_ref().map(|one| one.text.clone()),
            ..StreamRoute::default()
        }
    }
}

impl RouteObject for TCPRoute {
    fn parent_refs(&self) -> &[ParentReference] {
        &self.spec.parent_refs
    }

    fn set_readable(&mut self, parent_refs: Vec<ParentReference>, _: Option<&Value>) {
        self.spec.parent_refs = parent_refs;
    }

    fn rules(&self, namespace: &str, notes: &mut Vec<Note>) -> Result<Rules, FieldError> {
        let mut reader = Reader::new(notes);
        reader.unknown("spec", &self.spec.other);
        let stream = reader.read(&self.spec.rules, namespace)?;
        Ok(Rules::Stream(stream))
    }

    fn unusable(&self) -> Rules {
        Rules::Stream(StreamInput::unusable(&[]))
    }
}

impl RouteObject for TLSRoute {
    fn parent_refs(&self) -> &[ParentReference] {
        &self.spec.parent_refs
    }

    fn set_readable(&mut self, parent_refs: Vec<ParentReference>, spec: Option<&Value>) {
        self.spec.parent_refs = parent_refs;
        self.spec.hostnames = field(spec, "hostnames").unwrap_or_default();
    }

    fn rules(&self, namespace: &str, notes: &mut Vec<Note>) -> Result<Rules, FieldError> {
        let mut hostnames = Vec::new();
        let given = &self.spec.hostnames;
        if given.len() > MOST_HOSTNAMES {
            let message = format!("{} are too many: at most {MOST_HOSTNAMES}", given.len());
            return Err(FieldError::new("spec.hostnames", message));
        }
        for (index, one) in given.iter().enumerate() {
            let name = server_name(one).ok_or_else(|| {
                let field = format!("spec.hostnames[{index}]");
                let message =
                    format!("{one:?} is no name of a server, nor one that begins with `*.`");
                FieldError::new(field, message)
            })?;
            hostnames.push(name);
        }
        let mut reader = Reader::new(notes);
        reader.unknown("spec", &self.spec.other);
        let stream = reader.read(&self.spec.rules, namespace)?;
        Ok(Rules::Stream(StreamInput {
            hostnames,
            ..stream
        }))
    }

    /// If not even the names can be read, it is in the way of all.
    fn unusable(&self) -> Rules {
        let names = &self.spec.hostnames;
        let all_are_known = names.iter().all(|one| server_name(one).is_some());
        Rules::Stream(StreamInput::unusable(if all_are_known {
            names
        } else {
            &[]
        }))
    }
}

/// A name in lower case, if it is one that clients may ask for, or a wildcard before one.
fn server_name(text: &str) -> Option<ArcStr> {
    let name = text.strip_prefix("*.").unwrap_or(text);
    let is_address = name.parse::<std::net::IpAddr>().is_ok();
    let name_in_lower_case = name.to_ascii_lowercase();
    let is_name = ambit_k8s_api::is_dns_name(&name_in_lower_case, 253);
    (is_name && !is_address).then(|| text.to_ascii_lowercase().into())
}

/// Reads the rules of a route.
struct Reader<'a> {
    notes: &'a mut Vec<Note>,
    unsupported: Option<Unsupported>,
}

impl<'a> Reader<'a> {
    fn new(notes: &'a mut Vec<Note>) -> Self {
        Self {
            notes,
            unsupported: None,
        }
    }

    fn unknown(&mut self, at: &str, other: &BTreeMap<String, Value>) {
        for name in other.keys() {
            let field = format!("{at}.{name}");
            let text = arcstr::format!("{field}: is not supported");
            self.unsupported.get_or_insert(Unsupported {
                reason: UNSUPPORTED_VALUE,
                text,
            });
            let message = "is not supported: connections that the route is for are refused";
            self.notes.push(Note::new(field, message));
        }
    }

    fn read(
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
            self.unknown(at, &rule.other);
            for (index, one) in rule.backend_refs.iter().enumerate() {
                let at = format!("{at}.backendRefs[{index}]");
                self.unknown(&at, &one.other);
                let one = as_http(one);
                let read = BackendInput::read(
                    &one,
                    namespace,
                    (&at, Share::Connections),
                    Vec::new(),
                    self.notes,
                );
                backends.push(read?);
            }
        }
        Ok(StreamInput {
            hostnames: Vec::new(),
            backends,
            unsupported: self.unsupported,
        })
    }
}

/// A destination without what only those of requests have.
fn as_http(from: &BackendRef) -> HttpBackendRef {
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
