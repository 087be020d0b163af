//! Published and desired status of objects. Does no IO: takes reports, and returns writes.
//!
//! Every replica keeps the table; only the leader returns writes. A new leader writes all differences. A requested
//! write is not repeated while the watch has not reported it yet; a change of the object by another writer causes a new
//! write.

use std::collections::{BTreeMap, BTreeSet};

use ambit_derive::{
    condition::{self, ConditionContent, ConditionInput, ConditionType},
    conditions, status_list,
};
use ambit_k8s_api::{Kind, ObjectKey};
use ambit_kube_kit::{
    apply::{DesiredWrite, StatusTarget},
    events::EventRecord,
};
use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::{Value, json};

use crate::{
    addresses::AddressPool,
    report::{ObservedObject, Report, has_status},
    status_list::{self, desired_condition},
};

/// Field manager that writes allocated addresses.
const ADDRESSES_MANAGER: &str = "ambit-addresses";

/// Status writes and Kubernetes Events that follow from a report.
#[derive(Debug, Default)]
pub struct StatusWrites {
    /// Desired writes of objects' status.
    pub desired_writes: Vec<DesiredWrite>,
    pub(crate) events: Vec<EventRecord>,
}

/// Published and desired conditions of all objects.
#[derive(Debug, Default)]
pub struct StatusTable {
    is_leader: bool,
    entries: BTreeMap<ObjectKey, ObjectStatus>,
    /// Allocated addresses of ServiceEntries.
    address_pool: AddressPool,
    /// Whether every object that existed at the start is known.
    is_complete: bool,
}

#[derive(Debug)]
struct ObjectStatus {
    observed: ObservedObject,
    /// Requested conditions that the object does not show yet, by type.
    requested_conditions: BTreeMap<&'static str, Option<ConditionContent>>,
    /// Requested addresses that the object does not show yet.
    requested_addresses: Option<Value>,
    /// Requested status list that the object does not show yet.
    requested_list_entries: Option<Vec<Value>>,
}

impl StatusTable {
    /// Handles one report; returns the resulting writes and events.
    pub fn apply(&mut self, report: Report) -> StatusWrites {
        let mut out = StatusWrites::default();
        match report {
            Report::ObjectObserved(observed) => self.update(*observed, &mut out),
            Report::ProblemsChanged(key, problems) => {
                if let Some(entry) = self.entries.get_mut(&key) {
                    entry.observed.problems = problems;
                    if self.is_leader {
                        request_condition_writes(entry, &mut out);
                    }
                }
            }
            Report::DerivedStatusChanged(key, derived_status) => {
                if let Some(entry) = self.entries.get_mut(&key) {
                    entry.observed.derived_status = Some(derived_status);
                    if self.is_leader {
                        request_condition_writes(entry, &mut out);
                    }
                }
            }
            Report::InitialObjectsObserved => {
                self.is_complete = true;
                let all: Vec<_> = self.entries.keys().cloned().collect();
                self.allocate_addresses(all, &mut out);
            }
            Report::ObjectDeleted(key) => {
                self.address_pool.remove_entry(&key);
                if let Some(entry) = self.entries.remove(&key) {
                    out.desired_writes.extend(cancel_writes(&entry.observed));
                }
            }
        }
        out
    }

    /// Sets whether this replica is the leader; returns the resulting writes and events.
    pub fn set_leader(&mut self, is_leader: bool) -> StatusWrites {
        let mut out = StatusWrites::default();
        self.is_leader = is_leader;
        for entry in self.entries.values_mut() {
            entry.requested_conditions.clear();
            entry.requested_list_entries = None;
            entry.requested_addresses = None;
            if is_leader {
                request_condition_writes(entry, &mut out);
            } else {
                out.desired_writes.extend(cancel_writes(&entry.observed));
            }
        }
        let all: Vec<_> = self.entries.keys().cloned().collect();
        self.allocate_addresses(all, &mut out);
        out
    }

    /// Allocates addresses for those of the given objects that lack some.
    fn allocate_addresses(
        &mut self,
        to: impl IntoIterator<Item = ObjectKey>,
        out: &mut StatusWrites,
    ) {
        for key in to {
            let Some(entry) = self
                .entries
                .get_mut(&key)
                .filter(|_| self.is_leader && self.is_complete)
            else {
                continue;
            };
            if key.kind != Kind::ServiceEntry || entry.requested_addresses.is_some() {
                continue;
            }
            let Some(status) = self
                .address_pool
                .allocate(&key, &entry.observed.facts.addresses)
            else {
                continue;
            };
            let part = write_target(&entry.observed, ADDRESSES_MANAGER);
            out.desired_writes
                .push(DesiredWrite::ApplyStatus(part, status.clone()));
            entry.requested_addresses = Some(status);
        }
    }

    fn update(&mut self, observed: ObservedObject, out: &mut StatusWrites) {
        let key = observed.key.clone();
        if !has_status(key.kind) {
            self.report_new_problems(&observed, out);
            return;
        }
        let mut requested = BTreeMap::new();
        let (mut requested_addresses, mut requested_list_entries) = (None, None);
        if let Some(old) = self.entries.remove(&key) {
            // Until the status shows them, the requested addresses count as the entry's.
            if old.observed.facts.uid == observed.facts.uid
                && old.observed.facts.generation == observed.facts.generation
                && old.observed.facts.addresses == observed.facts.addresses
            {
                requested_addresses = old.requested_addresses;
            }
            // A change of the spec allows another attempt of a write that was given up.
            if old.observed.facts.generation == observed.facts.generation
                && old.observed.facts.uid == observed.facts.uid
            {
                requested = old.requested_conditions;
                requested_list_entries = old.requested_list_entries;
            }
        }
        if self.is_leader && !has_problem_condition(key.kind) {
            self.report_new_problems(&observed, out);
        }
        let mut affected = BTreeSet::new();
        if key.kind == Kind::ServiceEntry && requested_addresses.is_none() {
            affected = self
                .address_pool
                .update_entry(&key, &observed.facts.addresses);
            affected.insert(key.clone());
        }
        let mut entry = ObjectStatus {
            observed,
            requested_conditions: requested,
            requested_addresses,
            requested_list_entries,
        };
        if self.is_leader {
            request_condition_writes(&mut entry, out);
        }
        self.entries.insert(key, entry);
        self.allocate_addresses(affected, out);
    }

    fn report_new_problems(&self, observed: &ObservedObject, out: &mut StatusWrites) {
        if self.is_leader && observed.has_new_problems && !observed.problems.is_empty() {
            let text = condition::join_messages(&observed.problems);
            out.events.push(warning_event(observed, "Unusable", text));
        }
    }
}

/// Returns whether objects of a kind have a condition that reports problems, so that no event is needed.
fn has_problem_condition(kind: Kind) -> bool {
    conditions(kind).iter().any(|one| one.reports_problems)
}

/// Returns cancellations of all pending writes of an object.
fn cancel_writes(observed: &ObservedObject) -> impl Iterator<Item = DesiredWrite> {
    let managers = conditions(observed.key.kind).iter().map(|one| one.manager);
    let managers = managers.chain(status_list(observed.key.kind).map(|of| of.manager));
    managers.map(|manager| DesiredWrite::Cancel(write_target(observed, manager)))
}

/// Requests a write of each condition whose desired content differs from the published one.
fn request_condition_writes(entry: &mut ObjectStatus, out: &mut StatusWrites) {
    request_list_write(entry, out);
    let observed = &entry.observed;
    let input = ConditionInput {
        problems: &observed.problems,
        is_in_force: observed.in_force,
        is_attached: observed.facts.is_attached,
        derived_status: observed.derived_status.as_ref(),
    };
    let known = |of: &&ConditionType| !of.needs_derived_status || observed.derived_status.is_some();
    for of in conditions(observed.key.kind).iter().filter(known) {
        let desired = (of.build)(&input);
        let observed_value = observed.facts.conditions.iter();
        let is_it = |one: &&Value| one.get("type").and_then(Value::as_str) == Some(of.name);
        let observed_value = observed_value.clone().find(is_it);
        if is_condition_current(
            of,
            observed_value,
            desired.as_ref(),
            observed.facts.generation,
        ) {
            entry.requested_conditions.remove(of.name);
            continue;
        }
        if entry.requested_conditions.get(of.name) == Some(&desired) {
            continue;
        }
        let status = desired.as_ref().map_or_else(
            || json!({}),
            |condition| json!({"conditions": [condition_json(of, condition, observed_value, observed)]}),
        );
        out.desired_writes.push(DesiredWrite::ApplyStatus(
            write_target(observed, of.manager),
            status,
        ));
        if let Some(condition) = desired
            .as_ref()
            .filter(|condition| condition.needs_attention)
        {
            out.events.push(warning_event(
                observed,
                condition.reason,
                condition.message.clone(),
            ));
        }
        entry.requested_conditions.insert(of.name, desired);
    }
}

/// Requests a write of the status list if the desired list differs from the published one.
fn request_list_write(entry: &mut ObjectStatus, out: &mut StatusWrites) {
    let observed = &entry.observed;
    let (Some(of), Some(derived_status)) =
        (status_list(observed.key.kind), &observed.derived_status)
    else {
        return;
    };
    let observed_value = &observed.facts.list_entries;
    let desired = status_list::desired_entries(
        &of,
        &derived_status.entries,
        observed_value,
        observed.facts.generation,
    );
    if status_list::is_list_current(observed_value, &desired) {
        entry.requested_list_entries = None;
        return;
    }
    let pending = entry.requested_list_entries.as_ref();
    if pending.is_some_and(|requested| status_list::is_list_current(requested, &desired)) {
        return;
    }
    let status = json!({of.list: desired});
    out.desired_writes.push(DesiredWrite::ApplyStatus(
        write_target(observed, of.manager),
        status,
    ));
    entry.requested_list_entries = Some(desired);
}

/// Returns whether a published condition has its desired value already.
fn is_condition_current(
    condition_type: &ConditionType,
    observed_value: Option<&Value>,
    desired: Option<&ConditionContent>,
    generation: Option<i64>,
) -> bool {
    match (observed_value, desired) {
        (Some(observed_value), Some(desired)) => {
            desired_condition(condition_type.name, desired, generation).is_published(observed_value)
        }
        (observed_value, desired) => observed_value.is_none() && desired.is_none(),
    }
}

fn condition_json(
    condition_type: &ConditionType,
    condition: &ConditionContent,
    observed_value: Option<&Value>,
    observed: &ObservedObject,
) -> Value {
    let mut condition =
        desired_condition(condition_type.name, condition, observed.facts.generation)
            .to_json(observed_value);
    // Istio's own conditions have the generation as text, Kubernetes' as a number.
    if let Some(generation) = condition.get_mut("observedGeneration")
        && observed.key.kind.is_istio()
    {
        *generation = generation.to_string().into();
    }
    condition
}

fn write_target(observed: &ObservedObject, manager: &'static str) -> StatusTarget {
    StatusTarget {
        api_version: observed.facts.api_version.clone(),
        kind: observed.key.kind.as_str(),
        plural: observed.key.kind.plural(),
        namespace: observed.key.namespace.to_string(),
        name: observed.key.name.to_string(),
        manager,
    }
}

fn warning_event(observed: &ObservedObject, reason: &'static str, text: String) -> EventRecord {
    let text_of = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    EventRecord {
        object: ObjectReference {
            api_version: text_of(&observed.facts.api_version),
            kind: text_of(observed.key.kind.as_str()),
            namespace: text_of(&observed.key.namespace),
            name: text_of(&observed.key.name),
            uid: text_of(&observed.facts.uid),
            ..ObjectReference::default()
        },
        is_warning: true,
        reason,
        action: "Read",
        text,
    }
}

#[cfg(test)]
mod tests;
