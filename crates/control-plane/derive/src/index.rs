//! The view of the objects ([`MeshView`]) with what is wrong with them, what is published, and what must be rendered anew
//! when one changes.
//!
//! Knows no kind by name but for where objects of several kinds meet: [`hosts`], [`marks`].

mod addresses;
mod attachment;
mod binding;
mod canary;
mod cluster_addresses;
mod discovery;
mod exports;
mod extensions;
mod foreign;
mod foreign_proxies;
mod gateway_address;
mod guarded;
mod hosts;
mod inbound_binding;
mod instances;
pub(crate) mod introduction;
mod key_sets;
mod kind;
mod kinds;
mod marks;
mod narrower_hosts;
mod published;
mod references;
mod registry;
pub(crate) mod replaced;
mod reports;
mod reserved;
mod served;
mod standing;
mod survey;
mod targets;
pub(crate) mod trust_domains;
mod view;
mod waypoint_rules;
mod workloads;

use std::collections::BTreeSet;

use ambit_k8s_api::{InvalidObject, Kind, Object, ObjectEvent, ObjectKey};
use ambit_model::ArcStr;
use serde_json::Value;

use crate::{
    Delta, MeshConfig, PodDirectory,
    problem::{FieldError, Problem, Severity},
};
pub use attachment::CONTROLLER;
pub(crate) use attachment::{Consent, Obstacle, Origin, Serves};
pub(crate) use binding::Binding;
pub use key_sets::{KeyForm, KeySource, KeyState};
pub use trust_domains::AcceptedTrustDomains;
pub use view::MeshView;

use kind::{Change, Read};
pub use kind::{Extent, Followed};
#[cfg(test)]
pub(crate) use kinds::app_protocol;
pub use kinds::{KindVisitor, ServiceRecord, conditions, is_attached, parts, visit_kinds};
use kinds::{Stored, functions};
use published::Published;
pub use registry::{RegisteredPort, RegisteredService};
use reports::Reports;
pub(crate) use served::PolicyScope;
pub(crate) use standing::names;
pub(crate) use workloads::{Services, canonical};

/// Maker of records: the unit in which they are marked as stale and rendered anew.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Maker {
    /// A host, with all objects that declare it.
    Host(ArcStr),
    /// Maker of an object's own records.
    Object(ObjectKey),
    /// The mesh: the policy that refuses all plaintext.
    StaticStrict,
}

impl Maker {
    fn makes_workloads(&self) -> bool {
        let Self::Object(key) = self else {
            return false;
        };
        matches!(
            key.kind,
            Kind::Pod | Kind::WorkloadEntry | Kind::ServiceEntry | Kind::EndpointSlice
        )
    }
}

/// Index of the mesh's objects, as described for the module.
#[derive(Debug)]
pub struct Index {
    /// Objects and their relations: all that records are rendered from.
    view: MeshView,
    /// Problems, conflicts and states of objects.
    reports: Reports,
    /// Objects in whose place is a substitute, because no usable form of them is known.
    substitutes: BTreeSet<ObjectKey>,
    /// Makers whose records must be rendered anew.
    stale: BTreeSet<Maker>,
    published: Published,
}

impl Index {
    /// An index without objects.
    pub fn new(config: MeshConfig) -> Self {
        Self {
            view: MeshView::new(config),
            reports: Reports::default(),
            substitutes: BTreeSet::new(),
            stale: BTreeSet::new(),
            published: Published::default(),
        }
    }

    /// Objects and their relations, without the ability to change them.
    pub fn view(&self) -> &MeshView {
        &self.view
    }

    /// Takes what happened to an object. `pods` follows at once, records at the next flush.
    pub fn handle(&mut self, event: &ObjectEvent, pods: &mut PodDirectory) {
        match event {
            ObjectEvent::Applied { object, origin } => {
                let origin = origin.as_ref().map(ToString::to_string);
                self.apply(object, origin.as_deref(), pods);
            }
            ObjectEvent::Refused { key, error, value } => self.refuse(key, error, value, pods),
            ObjectEvent::Deleted(key) => self.delete(key, pods),
        }
    }

    /// An object is there, or is as it is now; `origin` is where it is written, for its problems.
    pub fn apply(&mut self, object: &Object, origin: Option<&str>, pods: &mut PodDirectory) {
        self.take(object, &object.key(), origin, pods);
    }

    /// [`Self::apply`], of a known type.
    pub(crate) fn apply_as<K: Stored>(
        &mut self,
        object: &K,
        key: &ObjectKey,
        origin: Option<&str>,
        pods: &mut PodDirectory,
    ) {
        let problem = |severity, error: FieldError| Problem {
            severity,
            object: key.clone(),
            field: error.field,
            message: error.message,
            origin: origin.map(str::to_owned),
        };
        match K::read(object, &self.view.config) {
            Ok(Read { input, notes }) => {
                let notes = notes.into_iter();
                let notes = notes.map(|note| problem(Severity::Warning, note));
                self.substitutes.remove(key);
                self.reports.set_problems(key, notes.collect());
                self.put::<K>(key, input, pods);
            }
            Err(mut error) => {
                error.message += self.put_substitute(Some(object), key, pods);
                self.reports
                    .set_problems(key, vec![problem(Severity::Error, error)]);
            }
        }
    }

    /// An object is there, but cannot be read at all.
    pub fn refuse(
        &mut self,
        key: &ObjectKey,
        error: &InvalidObject,
        value: &Value,
        pods: &mut PodDirectory,
    ) {
        let consequence = (functions(key.kind).refuse)(self, key, value, pods);
        let problem = Problem {
            severity: Severity::Error,
            object: key.clone(),
            field: error.field.clone(),
            message: format!("{}{consequence}", error.message),
            origin: None,
        };
        self.reports.set_problems(key, vec![problem]);
    }

    /// Puts the fail-closed substitute of an unusable object in its place, unless a usable form of the object is known;
    /// there may be none. Returns the consequence, as the end of a sentence.
    pub(crate) fn put_substitute<K: Stored>(
        &mut self,
        object: Option<&K>,
        key: &ObjectKey,
        pods: &mut PodDirectory,
    ) -> &'static str {
        let is_known = self.view.get::<K>(key).is_some();
        let was_substituted = self.substitutes.contains(key);
        let substitute = object
            .filter(|_| !is_known || was_substituted)
            .and_then(|object| object.substitute(&self.view.config));
        if substitute.is_some() {
            self.substitutes.insert(key.clone());
            self.put::<K>(key, substitute, pods);
            return "; everything in its scope is refused until it is corrected";
        }
        if self.substitutes.remove(key) {
            self.put::<K>(key, None, pods);
            return "; the object has no effect";
        }
        if is_known {
            "; its last good version stays in force"
        } else {
            "; the object has no effect"
        }
    }

    /// An object is gone.
    pub fn delete(&mut self, key: &ObjectKey, pods: &mut PodDirectory) {
        self.substitutes.remove(key);
        self.reports.set_problems(key, Vec::new());
        (functions(key.kind).remove)(self, key, pods);
    }

    /// Replaces what an object was understood to be, and marks what depends on it.
    pub(crate) fn put<K: Stored>(
        &mut self,
        key: &ObjectKey,
        mut new: Option<K::Input>,
        pods: &mut PodDirectory,
    ) {
        if let (Some(new), Some(old)) = (&mut new, self.view.get::<K>(key)) {
            K::inherit(new, old);
        }
        let objects = K::of_mut(
            self.view
                .namespaces
                .entry(key.namespace.clone())
                .or_default(),
        );
        let old = match new.clone() {
            Some(input) => objects.insert(key.name.clone(), input),
            None => objects.remove(&key.name),
        };
        if new.is_none() {
            self.reports.set_conflicts(key, Vec::new());
        }
        if old != new {
            let (old, new) = (old.as_ref(), new.as_ref());
            K::changed(self, &Change { key, old, new }, pods);
        }
    }

    // === what is wrong ===
    /// Problems of objects now.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.reports.problems()
    }

    /// The problems of one object.
    pub fn problems_of(&self, key: &ObjectKey) -> Vec<Problem> {
        self.reports.problems_of(key)
    }

    /// Objects whose conflicts changed since the last call.
    pub fn take_changed_conflicts(&mut self) -> BTreeSet<ObjectKey> {
        self.reports.take_changed_conflicts()
    }

    /// Whether the problems of an object changed since they were last taken.
    pub fn has_new_problems(&self, key: &ObjectKey) -> bool {
        self.reports.has_new_problems(key)
    }

    /// Objects whose problems changed since the last call.
    pub fn take_changed_problems(&mut self) -> BTreeSet<ObjectKey> {
        self.reports.take_changed_problems()
    }

    // === records ===
    /// Renders what is stale; returns the records that changed.
    pub fn flush(&mut self) -> Delta {
        let mut delta = Delta::default();
        self.decide_introductions();
        // Endpoints first: which waypoints are before services and policies depends on them.
        let mut makers: Vec<_> = self
            .stale
            .extract_if(.., |maker| maker.makes_workloads())
            .collect();
        let endpoints = makers.len();
        for maker in &makers {
            self.publish(maker, &mut delta);
        }
        for (uid, workload) in &delta.workloads {
            let workload = workload.as_deref();
            let services = self.view.served.update(uid, served::as_endpoint(workload));
            if !services.is_empty() {
                self.mark_users_of_providers();
            }
            for service in services {
                self.mark_host(service.hostname);
            }
            let target = served::as_target(workload, |at| self.view.foreign_at(at));
            let scopes = self.view.behind.update(uid, target);
            if !scopes.is_empty() {
                self.mark_gateways();
            }
            for scope in scopes {
                self.mark_policies(&scope);
            }
        }
        makers.extend(std::mem::take(&mut self.stale));
        for maker in makers.iter().skip(endpoints) {
            self.publish(maker, &mut delta);
        }
        for maker in &makers {
            self.judge(maker);
        }
        delta.sort();
        delta
    }

    fn publish(&mut self, maker: &Maker, delta: &mut Delta) {
        let mut rendered = self.view.render(maker);
        if let Maker::Object(key) = maker {
            self.reports
                .set_conflicts(key, std::mem::take(&mut rendered.conflicts));
        }
        self.published.replace(maker, rendered, delta);
    }
}
