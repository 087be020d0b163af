//! Parsing of the parts that all kinds of routes have in common.

use ambit_k8s_api::{
    ObjectKey, ObjectMeta, ObjectType, created,
    gateway::{self, ParentReference},
};
use ambit_model::RouteName;
use serde_json::Value;

use crate::{
    objects::{
        readable::Parsed,
        route::{
            input::{RouteInput, RouteParent, RouteRules},
            references::{self, service_kind},
        },
    },
    problem::{FieldError, Note},
};

/// Kind of route, with the parts of its parsing that differ from other kinds.
pub(crate) trait RouteObject: ObjectType {
    /// Returns the parent references of the route.
    fn parent_refs(&self) -> &[ParentReference];

    /// Sets the readable fields of a route that cannot be deserialized as a whole: its parents, and fields of `spec`.
    fn set_readable(&mut self, parent_refs: Vec<ParentReference>, spec: Option<&Value>);

    /// Parses the rules; unsupported parts are noted.
    fn rules(&self, namespace: &str, notes: &mut Vec<Note>) -> Result<RouteRules, FieldError>;

    /// Returns the rules that replace invalid ones: all traffic that the route may be for is refused.
    fn unusable(&self) -> RouteRules;
}

pub(crate) fn read<K: RouteObject>(object: &K) -> Result<Parsed<RouteInput>, FieldError> {
    let mut notes = Vec::new();
    let namespace = namespace(object.metadata());
    let parents = parents(object.parent_refs(), namespace)?;
    if parents.is_empty() {
        // Of other controllers' Gateways.
        return Ok(Parsed::new(None, notes));
    }
    let rules = object.rules(namespace, &mut notes)?;
    Ok(Parsed::new(Some(route(object, parents, rules)), notes))
}

/// Adds a note that `hostnames` have no effect on routes of services.
pub(crate) fn note_hostnames(hostnames: &[String], notes: &mut Vec<Note>) {
    if !hostnames.is_empty() {
        let message = "has no effect on routes of services: all requests to the service match";
        notes.push(Note::new("spec.hostnames", message));
    }
}

pub(crate) fn namespace(metadata: &ObjectMeta) -> &str {
    metadata.namespace.as_deref().unwrap_or("default")
}

pub(crate) fn parents(
    references: &[ParentReference],
    namespace: &str,
) -> Result<Vec<RouteParent>, FieldError> {
    let mut parents = Vec::new();
    for (index, reference) in references.iter().enumerate() {
        let group = reference.group.as_deref().unwrap_or(gateway::GROUP);
        let kind = reference.kind.as_deref().unwrap_or("Gateway");
        let Some(kind) = service_kind(group, kind) else {
            continue;
        };
        let port = reference.port.map(references::parse_port).transpose();
        let port = port.map_err(|message| {
            FieldError::new(format!("spec.parentRefs[{index}].port"), message)
        })?;
        let namespace = reference.namespace.as_deref().unwrap_or(namespace);
        parents.push(RouteParent {
            target: ObjectKey::new(kind, namespace, reference.name.as_str()),
            port,
            reference: reference.clone(),
        });
    }
    Ok(parents)
}

pub(crate) fn route<K: RouteObject>(
    from: &K,
    parents: Vec<RouteParent>,
    rules: RouteRules,
) -> RouteInput {
    let metadata = from.metadata();
    RouteInput {
        kind: K::OBJECT_KIND,
        name: RouteName {
            kind: K::OBJECT_KIND.as_str().into(),
            namespace: namespace(metadata).into(),
            name: metadata.name.as_deref().unwrap_or_default().into(),
        },
        created: created(metadata),
        parents,
        scope: None,
        rules,
    }
}
