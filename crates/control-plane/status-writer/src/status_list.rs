//! Conditions of parts of an object, in a list of its status: listeners of a Gateway, parents of a route. Does no IO.
//!
//! For the API server, such a list is one value (an atomic list): if other controllers write to it as well, it is
//! written with their entries.

use ambit_derive::condition::{ConditionContent, StatusEntry, StatusListType};
use ambit_k8s_api::status::DesiredCondition;
use serde_json::{Map, Value};

/// Returns the desired status list: entries of other controllers unchanged, then our own.
pub(crate) fn desired_entries(
    list_type: &StatusListType,
    own_entries: &[StatusEntry],
    published: &[Value],
    generation: Option<i64>,
) -> Vec<Value> {
    let others = published
        .iter()
        .filter(|one| list_type.is_shared && !is_own_entry(one));
    let ours = own_entries
        .iter()
        .map(|entry| entry_json(entry, published, generation));
    others.cloned().chain(ours).collect()
}

/// Returns whether a published list equals the desired one, except for transition times.
pub(crate) fn is_list_current(there: &[Value], desired: &[Value]) -> bool {
    let timeless = |list: &[Value]| -> Vec<Value> {
        let mut list = list.to_vec();
        for entry in &mut list {
            let conditions = entry.get_mut("conditions").and_then(Value::as_array_mut);
            for condition in conditions.into_iter().flatten() {
                if let Some(fields) = condition.as_object_mut() {
                    fields.remove("lastTransitionTime");
                }
            }
        }
        list
    };
    timeless(there) == timeless(desired)
}

/// Returns whether our controller has written an entry of a shared status list.
fn is_own_entry(entry: &Value) -> bool {
    entry.get("controllerName").and_then(Value::as_str) == Some(ambit_derive::CONTROLLER)
}

fn entry_json(entry: &StatusEntry, there: &[Value], generation: Option<i64>) -> Value {
    let is_it = |one: &&Value| {
        let mut fields = entry.identity.iter();
        fields.all(|(name, value)| one.get(*name) == Some(value))
    };
    let old = there.iter().find(is_it);
    let old = old.and_then(|old| old.get("conditions")?.as_array());
    let conditions = entry.conditions.iter().map(|(name, condition)| {
        let is_it = |one: &&Value| one.get("type").and_then(Value::as_str) == Some(*name);
        let old = old.and_then(|all| all.iter().find(is_it));
        desired_condition(name, condition, generation).to_json(old)
    });
    let conditions: Vec<_> = conditions.collect();
    let fields = entry.identity.iter().chain(&entry.other_fields);
    let mut written: Map<_, _> = fields
        .map(|(name, value)| ((*name).to_owned(), value.clone()))
        .collect();
    written.insert("conditions".to_owned(), conditions.into());
    written.into()
}

/// Returns the desired status condition of a type, with the status, reason and message of `condition`.
pub(crate) fn desired_condition<'a>(
    type_: &'a str,
    condition: &'a ConditionContent,
    generation: Option<i64>,
) -> DesiredCondition<'a> {
    DesiredCondition {
        type_,
        is_true: condition.is_true,
        reason: condition.reason,
        message: &condition.message,
        generation,
    }
}
