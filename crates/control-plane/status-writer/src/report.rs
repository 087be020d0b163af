//! Reports about objects, for the writer of conditions.

use ambit_derive::{Problem, condition::DerivedStatus};
use ambit_k8s_api::{Kind, Object, ObjectKey, status::conditions};
use serde_json::Value;

use crate::addresses;

/// Report about an object, for the writer of conditions.
#[derive(Clone, Debug)]
pub enum Report {
    /// The object was added or changed, or cannot be parsed.
    ObjectObserved(Box<ObservedObject>),
    /// The object's problems changed because of other objects.
    ProblemsChanged(ObjectKey, Vec<Problem>),
    /// The object's derived conditions changed because of other objects.
    DerivedStatusChanged(ObjectKey, DerivedStatus),
    /// The object was deleted.
    ObjectDeleted(ObjectKey),
    /// Every object that existed at the start was reported.
    InitialObjectsObserved,
}

/// Object with the problems and conditions that were derived for it.
#[derive(Clone, Debug)]
pub struct ObservedObject {
    /// Key of the object.
    pub key: ObjectKey,
    /// Fields of the object that conditions depend on.
    pub facts: StatusFacts,
    /// Problems that were found in the object.
    pub problems: Vec<Problem>,
    /// Whether the problems have changed since the last report.
    pub has_new_problems: bool,
    /// Whether any part of a policy is enforced.
    pub in_force: bool,
    /// Conditions that depend on other objects; `None` if they are not derived yet.
    pub derived_status: Option<DerivedStatus>,
}

/// Fields of an object that the writer of conditions needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatusFacts {
    /// API version, `group/version`.
    pub api_version: String,
    /// UID of the object.
    pub uid: String,
    /// Value of `metadata.generation`, for `observedGeneration`.
    pub generation: Option<i64>,
    /// Whether the object is attached to other objects, so that their waypoints enforce it.
    pub is_attached: bool,
    /// Published conditions of the object.
    pub conditions: Vec<Value>,
    /// Published status entries of the object's parts, such as a Gateway's listeners or a route's parents.
    pub list_entries: Vec<Value>,
    /// Addresses of a ServiceEntry's hosts; empty for other kinds.
    pub addresses: addresses::ServiceEntryAddresses,
}

/// Returns whether objects of a kind have conditions that this crate writes.
pub fn has_status(kind: Kind) -> bool {
    !ambit_derive::conditions(kind).is_empty() || ambit_derive::status_list(kind).is_some()
}

impl StatusFacts {
    /// Returns the fields of an object.
    pub fn from_object(object: &Object) -> Self {
        let metadata = object.metadata();
        Self {
            api_version: object.status().api_version().to_owned(),
            uid: metadata.uid.clone().unwrap_or_default(),
            generation: metadata.generation,
            is_attached: ambit_derive::is_attached(object),
            conditions: object.status().conditions(),
            list_entries: list_entries(
                object.kind(),
                match object {
                    Object::Gateway(gateway) => &gateway.status,
                    Object::HTTPRoute(route) => &route.status,
                    Object::GRPCRoute(route) => &route.status,
                    Object::TLSRoute(route) => &route.status,
                    Object::TCPRoute(route) => &route.status,
                    Object::BackendTLSPolicy(policy) => &policy.status,
                    _ => &Value::Null,
                },
            ),
            addresses: match object {
                Object::ServiceEntry(entry) => addresses::ServiceEntryAddresses::from_entry(entry),
                _ => addresses::ServiceEntryAddresses::default(),
            },
        }
    }

    /// Returns the fields of an object that cannot be parsed.
    pub fn from_invalid_json(kind: Kind, value: &Value) -> Self {
        let text = |pointer: &str| {
            let value = value.pointer(pointer).and_then(Value::as_str);
            value.unwrap_or_default().to_owned()
        };
        Self {
            api_version: text("/apiVersion"),
            uid: text("/metadata/uid"),
            generation: value
                .pointer("/metadata/generation")
                .and_then(Value::as_i64),
            conditions: value.get("status").map(conditions).unwrap_or_default(),
            list_entries: value
                .get("status")
                .map(|status| list_entries(kind, status))
                .unwrap_or_default(),
            ..Self::default()
        }
    }
}

/// Returns a status's entries for the parts of an object that have conditions of their own.
fn list_entries(kind: Kind, status: &Value) -> Vec<Value> {
    let list = ambit_derive::status_list(kind).map(|of| of.list);
    let parts = list.and_then(|list| status.get(list)?.as_array());
    parts.cloned().unwrap_or_default()
}
