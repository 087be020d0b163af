//! What stands on objects and what should. Pure: reports go in, writes come out.
//!
//! Every replica keeps the book; only a leader's writes leave it. One that becomes leader writes what
//! differs. A write that was asked for is not asked for again until the object shows it, so that the
//! delay of a watch makes no second write; somebody else's change makes one.

use std::collections::{BTreeMap, BTreeSet};

use ambit_k8s_api::{Kind, ObjectKey};
use ambit_kube_kit::{
    apply::{Part, Wish},
    events::Remark,
};
use ambit_model::ArcStr;
use k8s_openapi::{api::core::v1::ObjectReference, jiff::Timestamp};
use serde_json::{Value, json};

use super::{
    Report, Seen,
    addresses::Pool,
    judge::{self, Slot, Verdict},
};

/// Under which manager addresses are written.
const ADDRESSES: Slot = Slot {
    condition: "",
    manager: "ambit-addresses",
};

/// What leaves the book.
#[derive(Debug, Default)]
pub(crate) struct Out {
    pub(crate) wishes: Vec<Wish>,
    pub(super) remarks: Vec<Remark>,
}

/// See the module above.
#[derive(Debug, Default)]
pub(crate) struct Book {
    leads: bool,
    entries: BTreeMap<ObjectKey, Entry>,
    /// The waypoints that namespaces name.
    waypoints: BTreeMap<ArcStr, String>,
    /// Addresses of ServiceEntries.
    pool: Pool,
    /// Whether every object that existed at the start is known.
    complete: bool,
}

#[derive(Debug)]
struct Entry {
    seen: Seen,
    /// What was asked to be written and is not seen yet.
    asked: BTreeMap<Slot, Option<Verdict>>,
    /// The addresses that were asked to be written and are not seen yet.
    asked_addresses: Option<Value>,
}

impl Book {
    /// Takes one report.
    pub(crate) fn take(&mut self, report: Report) -> Out {
        let mut out = Out::default();
        match report {
            Report::Seen(seen) if seen.key.kind == Kind::Namespace => {
                let name = seen.key.name.clone();
                self.set_waypoint(&name, seen.facts.waypoint, &mut out);
            }
            Report::Gone(key) if key.kind == Kind::Namespace => {
                self.set_waypoint(&key.name, None, &mut out);
            }
            Report::Seen(seen) => self.see(*seen, &mut out),
            Report::Problems(key, problems) => {
                if let Some(entry) = self.entries.get_mut(&key) {
                    entry.seen.problems = problems;
                    if self.leads {
                        compare(entry, &self.waypoints, &mut out);
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
                    let parts = judge::slots(key.kind).iter();
                    let parts = parts.filter_map(|slot| part(&entry.seen, *slot));
                    out.wishes.extend(parts.map(Wish::Forget));
                }
            }
        }
        out
    }

    /// This replica leads from now on, or no more.
    pub(crate) fn lead(&mut self, leads: bool) -> Out {
        let mut out = Out::default();
        self.leads = leads;
        for entry in self.entries.values_mut() {
            entry.asked.clear();
            entry.asked_addresses = None;
            if leads {
                compare(entry, &self.waypoints, &mut out);
            } else {
                let parts = judge::slots(entry.seen.key.kind).iter();
                let parts = parts.filter_map(|slot| part(&entry.seen, *slot));
                out.wishes.extend(parts.map(Wish::Forget));
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
                .filter(|_| self.leads && self.complete)
            else {
                continue;
            };
            if key.kind != Kind::ServiceEntry || entry.asked_addresses.is_some() {
                continue;
            }
            let Some(status) = self.pool.give(&key, &entry.seen.facts.addresses) else {
                continue;
            };
            if let Some(part) = part(&entry.seen, ADDRESSES) {
                out.wishes.push(Wish::Status(part, status.clone()));
                entry.asked_addresses = Some(status);
            }
        }
    }

    fn see(&mut self, seen: Seen, out: &mut Out) {
        let key = seen.key.clone();
        if judge::slots(key.kind).is_empty() {
            self.remark_news(&seen, out);
            return;
        }
        let mut asked = BTreeMap::new();
        let mut asked_addresses = None;
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
                asked = old.asked;
            }
        }
        if self.leads && !judges_problems(key.kind) {
            self.remark_news(&seen, out);
        }
        let mut affected = BTreeSet::new();
        if key.kind == Kind::ServiceEntry && asked_addresses.is_none() {
            affected = self.pool.see(&key, &seen.facts.addresses);
            affected.insert(key.clone());
        }
        let mut entry = Entry {
            seen,
            asked,
            asked_addresses,
        };
        if self.leads {
            compare(&mut entry, &self.waypoints, out);
        }
        self.entries.insert(key, entry);
        self.give_addresses(affected, out);
    }

    fn remark_news(&self, seen: &Seen, out: &mut Out) {
        if self.leads && seen.is_news && !seen.problems.is_empty() {
            let text = judge::text(&seen.problems);
            out.remarks.push(remark(seen, "Unusable", text));
        }
    }

    fn set_waypoint(&mut self, namespace: &ArcStr, waypoint: Option<String>, out: &mut Out) {
        let old = match waypoint.clone() {
            Some(name) => self.waypoints.insert(namespace.clone(), name),
            None => self.waypoints.remove(namespace),
        };
        if old == waypoint || !self.leads {
            return;
        }
        let bound: BTreeSet<_> = [Kind::Service, Kind::ServiceEntry, Kind::WorkloadEntry].into();
        let inside = self.entries.iter_mut();
        for (_, entry) in
            inside.filter(|(key, _)| key.namespace == *namespace && bound.contains(&key.kind))
        {
            compare(entry, &self.waypoints, out);
        }
    }
}

/// Whether a condition of this kind tells its problems, so that they need no event of their own.
fn judges_problems(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::AuthorizationPolicy
            | Kind::PeerAuthentication
            | Kind::ServiceEntry
            | Kind::WorkloadEntry
    )
}

/// Asks for what differs.
fn compare(entry: &mut Entry, waypoints: &BTreeMap<ArcStr, String>, out: &mut Out) {
    let seen = &entry.seen;
    let inherited = waypoints.get(&seen.key.namespace).map(String::as_str);
    for slot in judge::slots(seen.key.kind) {
        let wanted = judge::verdict(*slot, seen, inherited);
        let there = seen.facts.conditions.iter().find(|condition| {
            condition.get("type").and_then(Value::as_str) == Some(slot.condition)
        });
        if says(there, wanted.as_ref(), seen.facts.generation) {
            entry.asked.remove(slot);
            continue;
        }
        if entry.asked.get(slot) == Some(&wanted) {
            continue;
        }
        let Some(part) = part(seen, *slot) else {
            continue;
        };
        let status = wanted.as_ref().map_or_else(
            || json!({}),
            |verdict| json!({"conditions": [condition(*slot, verdict, there, seen)]}),
        );
        out.wishes.push(Wish::Status(part, status));
        if let Some(verdict) = wanted.as_ref().filter(|verdict| verdict.is_trouble) {
            out.remarks
                .push(remark(seen, verdict.reason, verdict.message.clone()));
        }
        entry.asked.insert(*slot, wanted);
    }
}

/// Whether a condition says already what it should.
fn says(there: Option<&Value>, wanted: Option<&Verdict>, generation: Option<i64>) -> bool {
    let (Some(there), Some(wanted)) = (there, wanted) else {
        return there.is_none() && wanted.is_none();
    };
    let text = |field: &str| there.get(field).and_then(Value::as_str).unwrap_or_default();
    let of_generation = there.get("observedGeneration").and_then(|value| {
        let text = value.as_str().and_then(|text| text.parse().ok());
        value.as_i64().or(text)
    });
    text("status") == truth(wanted.is_true)
        && text("reason") == wanted.reason
        && text("message") == wanted.message
        && of_generation == generation
}

fn truth(is_true: bool) -> &'static str {
    if is_true { "True" } else { "False" }
}

fn condition(slot: Slot, verdict: &Verdict, there: Option<&Value>, seen: &Seen) -> Value {
    let status = truth(verdict.is_true);
    let text = |field: &str| {
        there
            .and_then(|there| there.get(field))
            .and_then(Value::as_str)
    };
    let since = text("lastTransitionTime")
        .filter(|_| text("status") == Some(status))
        .map_or_else(now, str::to_owned);
    let mut condition = json!({
        "type": slot.condition,
        "status": status,
        "reason": verdict.reason,
        "message": verdict.message,
        "lastTransitionTime": since,
    });
    if let (Some(generation), Some(fields)) = (seen.facts.generation, condition.as_object_mut()) {
        // Istio's own conditions have it as text, Kubernetes' as a number.
        let generation = match seen.key.kind {
            Kind::Service => Value::from(generation),
            _ => generation.to_string().into(),
        };
        fields.insert("observedGeneration".to_owned(), generation);
    }
    condition
}

/// The API keeps whole seconds.
fn now() -> String {
    let seconds = Timestamp::now().as_second();
    Timestamp::from_second(seconds)
        .unwrap_or_default()
        .to_string()
}

fn part(seen: &Seen, slot: Slot) -> Option<Part> {
    Some(Part {
        api_version: seen.facts.api_version.clone(),
        kind: seen.key.kind.as_str(),
        plural: judge::plural(seen.key.kind)?,
        namespace: seen.key.namespace.to_string(),
        name: seen.key.name.to_string(),
        manager: slot.manager,
    })
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
