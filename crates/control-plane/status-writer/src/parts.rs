//! Conditions of parts of an object, in a list of its status: listeners of a Gateway, parents of a route. Does no IO.
//!
//! For the API server, such a list is one value (an atomic list): if other controllers write to it as well, it is
//! written with their entries.

use ambit_derive::condition::{Part, PartsType, Verdict};
use ambit_k8s_api::status::DesiredCondition;
use serde_json::{Map, Value};

/// Returns the desired list of parts: entries of other controllers unchanged, then ours.
pub(crate) fn wanted(
    of: &PartsType,
    ours: &[Part],
    there: &[Value],
    generation: Option<i64>,
) -> Vec<Value> {
    let others = there.iter().filter(|one| of.is_shared && !is_ours(one));
    let ours = ours.iter().map(|part| write(part, there, generation));
    others.cloned().chain(ours).collect()
}

/// Returns whether a published list equals the desired one, except for transition times.
pub(crate) fn is_current(there: &[Value], wanted: &[Value]) -> bool {
    let timeless = |list: &[Value]| -> Vec<Value> {
        let mut list = list.to_vec();
        for part in &mut list {
            let conditions = part.get_mut("conditions").and_then(Value::as_array_mut);
            for condition in conditions.into_iter().flatten() {
                if let Some(fields) = condition.as_object_mut() {
                    fields.remove("lastTransitionTime");
                }
            }
        }
        list
    };
    timeless(there) == timeless(wanted)
}

/// Returns whether a part of a shared list is written by our controller.
fn is_ours(part: &Value) -> bool {
    part.get("controllerName").and_then(Value::as_str) == Some(ambit_derive::CONTROLLER)
}

fn write(part: &Part, there: &[Value], generation: Option<i64>) -> Value {
    let is_it = |one: &&Value| {
        let mut fields = part.identity.iter();
        fields.all(|(name, value)| one.get(*name) == Some(value))
    };
    let old = there.iter().find(is_it);
    let old = old.and_then(|old| old.get("conditions")?.as_array());
    let conditions = part.conditions.iter().map(|(name, verdict)| {
        let is_it = |one: &&Value| one.get("type").and_then(Value::as_str) == Some(*name);
        let old = old.and_then(|all| all.iter().find(is_it));
        desired(name, verdict, generation).to_json(old)
    });
    let conditions: Vec<_> = conditions.collect();
    let fields = part.identity.iter().chain(&part.fields);
    let mut written: Map<_, _> = fields
        .map(|(name, value)| ((*name).to_owned(), value.clone()))
        .collect();
    written.insert("conditions".to_owned(), conditions.into());
    written.into()
}

/// Returns the desired status condition of a type with a verdict's status, reason and message.
pub(crate) fn desired<'a>(
    type_: &'a str,
    verdict: &'a Verdict,
    generation: Option<i64>,
) -> DesiredCondition<'a> {
    DesiredCondition {
        type_,
        is_true: verdict.is_true,
        reason: verdict.reason,
        message: &verdict.message,
        generation,
    }
}
