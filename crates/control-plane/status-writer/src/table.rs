//! Published and desired status of objects. Pure: reports go in, writes come out.
//!
//! Every replica keeps the table; only a leader's writes leave it. One that becomes leader writes what differs. A
//! requested write is not repeated until the object shows it, so that the delay of a watch makes no second write;
//! another writer's change makes one.

use std::collections::{BTreeMap, BTreeSet};

use ambit_derive::{
    condition::{self, ConditionType, Subject, Verdict},
    conditions, parts,
};
use ambit_k8s_api::{Kind, ObjectKey};
use ambit_kube_kit::{
    apply::{Part, Wish},
    events::Remark,
};
use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::{Value, json};

use crate::{
    addresses::Pool,
    parts::{self, desired},
    report::{Report, Seen, concerns},
};

/// Under which manager addresses are written.
const ADDRESSES: &str = "ambit-addresses";

/// Writes that follow from a report.
#[derive(Debug, Default)]
pub struct Out {
    /// Desired states of objects.
    pub wishes: Vec<Wish>,
    pub(crate) remarks: Vec<Remark>,
}

/// Conditions that are there and should be, as described for the module.
#[derive(Debug, Default)]
pub struct StatusTable {
    is_leader: bool,
    entries: BTreeMap<ObjectKey, Entry>,
    /// Addresses of ServiceEntries.
    pool: Pool,
    /// Whether every object that existed at the start is known.
    complete: bool,
}

#[derive(Debug)]
struct Entry {
    seen: Seen,
    /// Conditions that were written and are not seen yet, by their types.
    requested: BTreeMap<&'static str, Option<Verdict>>,
    /// Addresses whose write is not observed yet.
    asked_addresses: Option<Value>,
    /// Parts whose write is not observed yet.
    requested_parts: Option<Vec<Value>>,
}

impl StatusTable {
    /// Takes one report.
    pub fn take(&mut self, report: Report) -> Out {
        let mut out = Out::default();
        match report {
            Report::Seen(seen) => self.see(*seen, &mut out),
            Report::Problems(key, problems) => {
                if let Some(entry) = self.entries.get_mut(&key) {
                    entry.seen.problems = problems;
                    if self.is_leader {
                        compare(entry, &mut out);
                    }
                }
            }
            Report::Standing(key, standing) => {
                if let Some(entry) = self.entries.get_mut(&key) {
                    entry.seen.standing = Some(standing);
                    if self.is_leader {
                        compare(entry, &mut out);
                    }
                }
            }
            Report::Complete => {
                self.complete = true;
                let all: Vec<_> = self.entries.keys().cloned().collect();
                self.give_addresses(all, &mut out);
            }
            Report::Gone(key) => {
                self.pool.forget(&key);
                if let Some(entry) = self.entries.remove(&key) {
                    out.wishes.extend(forget(&entry.seen));
                }
            }
        }
        out
    }

    /// Sets whether this replica is the leader.
    pub fn set_leader(&mut self, is_leader: bool) -> Out {
        let mut out = Out::default();
        self.is_leader = is_leader;
        for entry in self.entries.values_mut() {
            entry.requested.clear();
            entry.requested_parts = None;
            entry.asked_addresses = None;
            if is_leader {
                compare(entry, &mut out);
            } else {
                out.wishes.extend(forget(&entry.seen));
            }
        }
        let all: Vec<_> = self.entries.keys().cloned().collect();
        self.give_addresses(all, &mut out);
        out
    }

    /// Gives addresses to those of some objects that should have other ones than they have.
    fn give_addresses(&mut self, to: impl IntoIterator<Item = ObjectKey>, out: &mut Out) {
        for key in to {
            let Some(entry) = self
                .entries
                .get_mut(&key)
                .filter(|_| self.is_leader && self.complete)
            else {
                continue;
            };
            if key.kind != Kind::ServiceEntry || entry.asked_addresses.is_some() {
                continue;
            }
            let Some(status) = self.pool.give(&key, &entry.seen.facts.addresses) else {
                continue;
            };
            let part = part(&entry.seen, ADDRESSES);
            out.wishes.push(Wish::Status(part, status.clone()));
            entry.asked_addresses = Some(status);
        }
    }

    fn see(&mut self, seen: Seen, out: &mut Out) {
        let key = seen.key.clone();
        if !concerns(key.kind) {
            self.remark_news(&seen, out);
            return;
        }
        let mut requested = BTreeMap::new();
        let (mut asked_addresses, mut requested_parts) = (None, None);
        if let Some(old) = self.entries.remove(&key) {
            // Until it shows them, the addresses that it was given stay its own.
            if old.seen.facts.uid == seen.facts.uid
                && old.seen.facts.generation == seen.facts.generation
                && old.seen.facts.addresses == seen.facts.addresses
            {
                asked_addresses = old.asked_addresses;
            }
            // A change of what is wished is a new chance for a write that was given up.
            if old.seen.facts.generation == seen.facts.generation
                && old.seen.facts.uid == seen.facts.uid
            {
                requested = old.requested;
                requested_parts = old.requested_parts;
            }
        }
        if self.is_leader && !reports_problems(key.kind) {
            self.remark_news(&seen, out);
        }
        let mut affected = BTreeSet::new();
        if key.kind == Kind::ServiceEntry && asked_addresses.is_none() {
            affected = self.pool.see(&key, &seen.facts.addresses);
            affected.insert(key.clone());
        }
        let mut entry = Entry {
            seen,
            requested,
            asked_addresses,
            requested_parts,
        };
        if self.is_leader {
            compare(&mut entry, out);
        }
        self.entries.insert(key, entry);
        self.give_addresses(affected, out);
    }

    fn remark_news(&self, seen: &Seen, out: &mut Out) {
        if self.is_leader && seen.is_news && !seen.problems.is_empty() {
            let text = condition::text(&seen.problems);
            out.remarks.push(remark(seen, "Unusable", text));
        }
    }
}

/// Whether a condition of this kind reports its problems, so that they need no event of their own.
fn reports_problems(kind: Kind) -> bool {
    conditions(kind).iter().any(|one| one.reports_problems)
}

/// Wishes that withdraw everything that is to be written of an object.
fn forget(seen: &Seen) -> impl Iterator<Item = Wish> {
    let managers = conditions(seen.key.kind).iter().map(|one| one.manager);
    let managers = managers.chain(parts(seen.key.kind).map(|of| of.manager));
    managers.map(|manager| Wish::Forget(part(seen, manager)))
}

/// Asks for what differs.
fn compare(entry: &mut Entry, out: &mut Out) {
    compare_parts(entry, out);
    let seen = &entry.seen;
    let subject = Subject {
        problems: &seen.problems,
        in_force: seen.in_force,
        is_attached: seen.facts.is_attached,
        standing: seen.standing.as_ref(),
    };
    let known = |of: &&ConditionType| !of.needs_standing || seen.standing.is_some();
    for of in conditions(seen.key.kind).iter().filter(known) {
        let wanted = (of.verdict)(&subject);
        let there = seen.facts.conditions.iter();
        let is_it = |one: &&Value| one.get("type").and_then(Value::as_str) == Some(of.name);
        let there = there.clone().find(is_it);
        if is_current(of, there, wanted.as_ref(), seen.facts.generation) {
            entry.requested.remove(of.name);
            continue;
        }
        if entry.requested.get(of.name) == Some(&wanted) {
            continue;
        }
        let status = wanted.as_ref().map_or_else(
            || json!({}),
            |verdict| json!({"conditions": [condition(of, verdict, there, seen)]}),
        );
        out.wishes
            .push(Wish::Status(part(seen, of.manager), status));
        if let Some(verdict) = wanted.as_ref().filter(|verdict| verdict.is_trouble) {
            out.remarks
                .push(remark(seen, verdict.reason, verdict.message.clone()));
        }
        entry.requested.insert(of.name, wanted);
    }
}

/// Asks for parts that differ.
fn compare_parts(entry: &mut Entry, out: &mut Out) {
    let seen = &entry.seen;
    let (Some(of), Some(standing)) = (parts(seen.key.kind), &seen.standing) else {
        return;
    };
    let there = &seen.facts.parts;
    let wanted = parts::wanted(&of, &standing.parts, there, seen.facts.generation);
    if parts::is_current(there, &wanted) {
        entry.requested_parts = None;
        return;
    }
    let pending = entry.requested_parts.as_ref();
    if pending.is_some_and(|requested| parts::is_current(requested, &wanted)) {
        return;
    }
    let status = json!({of.list: wanted});
    out.wishes
        .push(Wish::Status(part(seen, of.manager), status));
    entry.requested_parts = Some(wanted);
}

/// Whether a condition has its desired value already.
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

fn condition(of: &ConditionType, verdict: &Verdict, there: Option<&Value>, seen: &Seen) -> Value {
    let mut condition = desired(of.name, verdict, seen.facts.generation).to_json(there);
    // Istio's own conditions have it as text, Kubernetes' as a number.
    if let Some(generation) = condition.get_mut("observedGeneration")
        && seen.key.kind.is_istio()
    {
        *generation = generation.to_string().into();
    }
    condition
}

fn part(seen: &Seen, manager: &'static str) -> Part {
    Part {
        api_version: seen.facts.api_version.clone(),
        kind: seen.key.kind.as_str(),
        plural: seen.key.kind.plural(),
        namespace: seen.key.namespace.to_string(),
        name: seen.key.name.to_string(),
        manager,
    }
}

fn remark(seen: &Seen, reason: &'static str, text: String) -> Remark {
    let text_of = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    Remark {
        object: ObjectReference {
            api_version: text_of(&seen.facts.api_version),
            kind: text_of(seen.key.kind.as_str()),
            namespace: text_of(&seen.key.namespace),
            name: text_of(&seen.key.name),
            uid: text_of(&seen.facts.uid),
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
