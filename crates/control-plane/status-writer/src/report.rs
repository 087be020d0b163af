//! Reports on objects, for the writers of conditions.

use ambit_derive::{Problem, condition::Standing};
use ambit_k8s_api::{Kind, Object, ObjectKey, status::conditions};
use serde_json::Value;

use crate::addresses;

/// Report on an object, for the writers of conditions.
#[derive(Clone, Debug)]
pub enum Report {
    /// An object was taken in, or could not be.
    Seen(Box<Seen>),
    /// Change of an object's problems, because of other objects.
    Problems(ObjectKey, Vec<Problem>),
    /// Change of an object's state that depends on others.
    Standing(ObjectKey, Standing),
    /// Object that is gone.
    Gone(ObjectKey),
    /// Every object that existed at the start was reported.
    Complete,
}

/// An object and what became of it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Key of the object.
    pub key: ObjectKey,
    /// All its fields in the API.
    pub facts: Facts,
    /// Problems of the object.
    pub problems: Vec<Problem>,
    /// Whether the problems are others than before.
    pub is_news: bool,
    /// Of a policy: whether any of it is in force.
    pub in_force: bool,
    /// State of the object that depends on others; `None` if it is not known yet.
    pub standing: Option<Standing>,
}

/// Facts about an object itself that the writer needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// API version, `group/version`.
    pub api_version: String,
    /// UID of the object.
    pub uid: String,
    /// Counts changes of what is wished.
    pub generation: Option<i64>,
    /// Whether it is attached to other objects, of which waypoints take care.
    pub is_attached: bool,
    /// Its conditions as they stand.
    pub conditions: Vec<Value>,
    /// Conditions of its parts.
    pub parts: Vec<Value>,
    /// The addresses of its hosts: of ServiceEntries.
    pub addresses: addresses::Addresses,
}

/// Whether objects of a kind are of interest here.
pub fn concerns(kind: Kind) -> bool {
    !ambit_derive::conditions(kind).is_empty() || ambit_derive::parts(kind).is_some()
}

impl Facts {
    /// Facts about an object.
    pub fn of(object: &Object) -> Self {
        let metadata = object.metadata();
        Self {
            api_version: object.status().api_version().to_owned(),
            uid: metadata.uid.clone().unwrap_or_default(),
            generation: metadata.generation,
            is_attached: ambit_derive::is_attached(object),
            conditions: object.status().conditions(),
            parts: parts(
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
                Object::ServiceEntry(entry) => addresses::Addresses::of(entry),
                _ => addresses::Addresses::default(),
            },
        }
    }

    /// Facts about an object that cannot be read.
    pub fn of_unreadable(kind: Kind, value: &Value) -> Self {
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
            parts: value
                .get("status")
                .map(|status| parts(kind, status))
                .unwrap_or_default(),
            ..Self::default()
        }
    }
}

/// The parts in a status that have conditions of their own.
fn parts(kind: Kind, status: &Value) -> Vec<Value> {
    let list = ambit_derive::parts(kind).map(|of| of.list);
    let parts = list.and_then(|list| status.get(list)?.as_array());
    parts.cloned().unwrap_or_default()
}
