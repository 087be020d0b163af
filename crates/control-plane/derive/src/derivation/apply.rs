//! Applies changed objects: parses them, stores their parsed form, and marks as stale the records that depend on them.

use ambit_k8s_api::{InvalidObject, Object, ObjectEvent, ObjectKey};
use serde_json::Value;

use crate::{
    derivation::table::kind_functions,
    index::{Index, change::Change},
    kinds::kind::MeshKind,
    objects::readable::Parsed,
    pod_directory::PodDirectory,
    problem::{FieldError, Problem, Severity},
};

impl Index {
    /// Handles a change of an object. The directory `pods` is updated at once, records at the next flush.
    pub fn handle(&mut self, event: &ObjectEvent, pods: &mut PodDirectory) {
        match event {
            ObjectEvent::Applied { object, origin } => {
                let origin = origin.as_ref().map(ToString::to_string);
                self.apply(object, origin.as_deref(), pods);
            }
            ObjectEvent::Invalid { key, error, value } => {
                self.apply_invalid(key, error, value, pods)
            }
            ObjectEvent::Deleted(key) => self.delete(key, pods),
        }
    }

    /// Applies a created or changed object; `origin` is the file of its manifest, which its problems name.
    pub fn apply(&mut self, object: &Object, origin: Option<&str>, pods: &mut PodDirectory) {
        self.parse_and_store(object, &object.key(), origin, pods);
    }

    /// Applies an object of a statically known kind.
    pub(crate) fn apply_as<K: MeshKind>(
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
            Ok(Parsed { input, notes }) => {
                let notes = notes.into_iter();
                let notes = notes.map(|note| problem(Severity::Warning, note));
                self.substituted_objects.remove(key);
                self.reports.set_problems(key, notes.collect());
                self.store_parsed::<K>(key, input, pods);
            }
            Err(mut error) => {
                error.message += self.put_substitute(Some(object), key, pods);
                self.reports
                    .set_problems(key, vec![problem(Severity::Error, error)]);
            }
        }
    }

    /// Handles an object that cannot be deserialized: reports the problem, and puts the substitute in its place.
    pub fn apply_invalid(
        &mut self,
        key: &ObjectKey,
        error: &InvalidObject,
        value: &Value,
        pods: &mut PodDirectory,
    ) {
        let consequence = (kind_functions(key.kind).store_substitute)(self, key, value, pods);
        let problem = Problem {
            severity: Severity::Error,
            object: key.clone(),
            field: error.field.clone(),
            message: format!("{}{consequence}", error.message),
            origin: None,
        };
        self.reports.set_problems(key, vec![problem]);
    }

    /// Stores the fail-closed substitute of an invalid object, unless a valid version of it is known or its kind has no
    /// substitute. Returns the consequence for the problem's message, as the end of a sentence.
    pub(crate) fn put_substitute<K: MeshKind>(
        &mut self,
        object: Option<&K>,
        key: &ObjectKey,
        pods: &mut PodDirectory,
    ) -> &'static str {
        let is_known = self.view.get::<K>(key).is_some();
        let was_substituted = self.substituted_objects.contains(key);
        let substitute = object
            .filter(|_| !is_known || was_substituted)
            .and_then(|object| object.substitute(&self.view.config));
        if substitute.is_some() {
            self.substituted_objects.insert(key.clone());
            self.store_parsed::<K>(key, substitute, pods);
            return "; everything in its scope is refused until it is corrected";
        }
        if self.substituted_objects.remove(key) {
            self.store_parsed::<K>(key, None, pods);
            return "; the object has no effect";
        }
        if is_known {
            "; its last good version stays in force"
        } else {
            "; the object has no effect"
        }
    }

    /// Removes a deleted object.
    pub fn delete(&mut self, key: &ObjectKey, pods: &mut PodDirectory) {
        self.substituted_objects.remove(key);
        self.reports.set_problems(key, Vec::new());
        (kind_functions(key.kind).remove)(self, key, pods);
    }

    /// Stores the parsed form of an object, and marks as stale the records that depend on it.
    pub(crate) fn store_parsed<K: MeshKind>(
        &mut self,
        key: &ObjectKey,
        mut new: Option<K::Input>,
        pods: &mut PodDirectory,
    ) {
        if let (Some(new), Some(old)) = (&mut new, self.view.get::<K>(key)) {
            K::inherit_if_unreadable(new, old);
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
            K::on_change(self, &Change { key, old, new }, pods);
        }
    }
}
