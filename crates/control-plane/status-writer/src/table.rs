//! Published and desired status of objects. Does no IO: takes reports, and returns writes.
//!
//! Every replica keeps the table; only the leader returns writes. A new leader writes all differences. A requested
//! write is not repeated until the object shows it, so that the delay of a watch does not cause a second one; a change
//! by another writer does.

use std::collections::{BTreeMap, BTreeSet};

use ambit_derive::{
    condition::{self, ConditionType, Subject, Verdict},
    conditions, parts,
};
use ambit_k8s_api::{Kind, ObjectKey};
use ambit_kube_kit::{
    apply::{DesiredWrite, Part},
    events::EventRecord,
};
use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::{Value, json};

use crate::{
    addresses::Pool,
    parts::{self, desired},
    report::{ObservedObject, Report, concerns},
};

/// Field manager that writes allocated addresses.
const ADDRESSES_MANAGER: &str = "ambit-addresses";

/// Writes and events that follow from a report.
#[derive(Debug, Default)]
pub struct Writes {
    /// Desired writes of objects' status.
    pub desired_writes: Vec<DesiredWrite>,
    pub(crate) events: Vec<EventRecord>,
}

/// Published and desired conditions of all objects.
#[derive(Debug, Default)]
pub struct StatusTable {
    is_leader: bool,
    entries: BTreeMap<ObjectKey, Entry>,
    /// Allocated addresses of ServiceEntries.
    pool: Pool,
    /// Whether every object that existed at the start is known.
    complete: bool,
}

#[derive(Debug)]
struct Entry {
    observed: ObservedObject,
    /// Requested conditions that the object does not show yet, by type.
    requested: BTreeMap<&'static str, Option<Verdict>>,
    /// Requested addresses that the object does not show yet.
    requested_addresses: Option<Value>,
    /// Requested parts that the object does not show yet.
    requested_parts: Option<Vec<Value>>,
}

impl StatusTable {
    /// Handles one report; returns the resulting writes and events.
    pub fn take(&mut self, report: Report) -> Writes {
        let mut out = Writes::default();
        match report {
            Report::Observed(observed) => self.update(*observed, &mut out),
            Report::Problems(key, problems) => {
                if let Some(entry) = self.entries.get_mut(&key) {
                    entry.observed.problems = problems;
                    if self.is_leader {
                        compare(entry, &mut out);
                    }
                }
            }
            Report::Standing(key, standing) => {
                if let Some(entry) = self.entries.get_mut(&key) {
                    entry.observed.standing = Some(standing);
                    if self.is_leader {
                        compare(entry, &mut out);
                    }
                }
            }
            Report::Complete => {
                self.complete = true;
                let all: Vec<_> = self.entries.keys().cloned().collect();
                self.allocate_addresses(all, &mut out);
            }
            Report::Gone(key) => {
                self.pool.forget(&key);
                if let Some(entry) = self.entries.remove(&key) {
                    out.desired_writes.extend(forget(&entry.observed));
                }
            }
        }
        out
    }

    /// Sets whether this replica is the leader; returns the resulting writes and events.
    pub fn set_leader(&mut self, is_leader: bool) -> Writes {
        let mut out = Writes::default();
        self.is_leader = is_leader;
        for entry in self.entries.values_mut() {
            entry.requested.clear();
            entry.requested_parts = None;
            entry.requested_addresses = None;
            if is_leader {
                compare(entry, &mut out);
            } else {
                out.desired_writes.extend(forget(&entry.observed));
            }
        }
        let all: Vec<_> = self.entries.keys().cloned().collect();
        self.allocate_addresses(all, &mut out);
        out
    }

    /// Allocates addresses for those of the given objects that lack some.
    fn allocate_addresses(&mut self, to: impl IntoIterator<Item = ObjectKey>, out: &mut Writes) {
        for key in to {
            let Some(entry) = self
                .entries
                .get_mut(&key)
                .filter(|_| self.is_leader && self.complete)
            else {
                continue;
            };
            if key.kind != Kind::ServiceEntry || entry.requested_addresses.is_some() {
                continue;
            }
            let Some(status) = self.pool.allocate(&key, &entry.observed.facts.addresses) else {
                continue;
            };
            let part = part(&entry.observed, ADDRESSES_MANAGER);
            out.desired_writes
                .push(DesiredWrite::Status(part, status.clone()));
            entry.requested_addresses = Some(status);
        }
    }

    fn update(&mut self, observed: ObservedObject, out: &mut Writes) {
        let key = observed.key.clone();
        if !concerns(key.kind) {
            self.remark_news(&observed, out);
            return;
        }
        let mut requested = BTreeMap::new();
        let (mut requested_addresses, mut requested_parts) = (None, None);
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
                requested = old.requested;
                requested_parts = old.requested_parts;
            }
        }
        if self.is_leader && !reports_problems(key.kind) {
            self.remark_news(&observed, out);
        }
        let mut affected = BTreeSet::new();
        if key.kind == Kind::ServiceEntry && requested_addresses.is_none() {
            affected = self.pool.update(&key, &observed.facts.addresses);
            affected.insert(key.clone());
        }
        let mut entry = Entry {
            observed,
            requested,
            requested_addresses,
            requested_parts,
        };
        if self.is_leader {
            compare(&mut entry, out);
        }
        self.entries.insert(key, entry);
        self.allocate_addresses(affected, out);
    }

    fn remark_news(&self, observed: &ObservedObject, out: &mut Writes) {
        if self.is_leader && observed.is_news && !observed.problems.is_empty() {
            let text = condition::text(&observed.problems);
            out.events.push(remark(observed, "Unusable", text));
        }
    }
}

/// Returns whether a condition of this kind reports problems, which then need no event.
fn reports_problems(kind: Kind) -> bool {
    conditions(kind).iter().any(|one| one.reports_problems)
}

/// Returns cancellations of all pending writes of an object.
fn forget(observed: &ObservedObject) -> impl Iterator<Item = DesiredWrite> {
    let managers = conditions(observed.key.kind).iter().map(|one| one.manager);
    let managers = managers.chain(parts(observed.key.kind).map(|of| of.manager));
    managers.map(|manager| DesiredWrite::Forget(part(observed, manager)))
}

/// Requests writes of conditions that differ from the published ones.
fn compare(entry: &mut Entry, out: &mut Writes) {
    compare_parts(entry, out);
    let observed = &entry.observed;
    let subject = Subject {
        problems: &observed.problems,
        in_force: observed.in_force,
        is_attached: observed.facts.is_attached,
        standing: observed.standing.as_ref(),
    };
    let known = |of: &&ConditionType| !of.needs_standing || observed.standing.is_some();
    for of in conditions(observed.key.kind).iter().filter(known) {
        let wanted = (of.verdict)(&subject);
        let there = observed.facts.conditions.iter();
        let is_it = |one: &&Value| one.get("type").and_then(Value::as_str) == Some(of.name);
        let there = there.clone().find(is_it);
        if is_current(of, there, wanted.as_ref(), observed.facts.generation) {
            entry.requested.remove(of.name);
            continue;
        }
        if entry.requested.get(of.name) == Some(&wanted) {
            continue;
        }
        let status = wanted.as_ref().map_or_else(
            || json!({}),
            |verdict| json!({"conditions": [condition(of, verdict, there, observed)]}),
        );
        out.desired_writes
            .push(DesiredWrite::Status(part(observed, of.manager), status));
        if let Some(verdict) = wanted.as_ref().filter(|verdict| verdict.is_trouble) {
            out.events
                .push(remark(observed, verdict.reason, verdict.message.clone()));
        }
        entry.requested.insert(of.name, wanted);
    }
}

/// Requests writes of parts that differ from the published ones.
fn compare_parts(entry: &mut Entry, out: &mut Writes) {
    let observed = &entry.observed;
    let (Some(of), Some(standing)) = (parts(observed.key.kind), &observed.standing) else {
        return;
    };
    let there = &observed.facts.parts;
    let wanted = parts::wanted(&of, &standing.parts, there, observed.facts.generation);
    if parts::is_current(there, &wanted) {
        entry.requested_parts = None;
        return;
    }
    let pending = entry.requested_parts.as_ref();
    if pending.is_some_and(|requested| parts::is_current(requested, &wanted)) {
        return;
    }
    let status = json!({of.list: wanted});
    out.desired_writes
        .push(DesiredWrite::Status(part(observed, of.manager), status));
    entry.requested_parts = Some(wanted);
}

/// Returns whether a published condition has its desired value already.
fn is_current(
    of: &ConditionType,
    there: Option<&Value>,
    wanted: Option<&Verdict>,
    generation: Option<i64>,
) -> bool {
    match (there, wanted) {
        (Some(there), Some(wanted)) => desired(of.name, wanted, generation).is_published(there),
        (there, wanted) => there.is_none() && wanted.is_none(),
    }
}

fn condition(
    of: &ConditionType,
    verdict: &Verdict,
    there: Option<&Value>,
    observed: &ObservedObject,
) -> Value {
    let mut condition = desired(of.name, verdict, observed.facts.generation).to_json(there);
    // Istio's own conditions have the generation as text, Kubernetes' as a number.
    if let Some(generation) = condition.get_mut("observedGeneration")
        && observed.key.kind.is_istio()
    {
        *generation = generation.to_string().into();
    }
    condition
}

fn part(observed: &ObservedObject, manager: &'static str) -> Part {
    Part {
        api_version: observed.facts.api_version.clone(),
        kind: observed.key.kind.as_str(),
        plural: observed.key.kind.plural(),
        namespace: observed.key.namespace.to_string(),
        name: observed.key.name.to_string(),
        manager,
    }
}

fn remark(observed: &ObservedObject, reason: &'static str, text: String) -> EventRecord {
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
