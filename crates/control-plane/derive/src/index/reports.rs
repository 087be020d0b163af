//! Problems of objects, conflicts between objects, and derived statuses, with the sets of objects whose reports changed
//! since the last call of `take_changed_…`.

use std::collections::{BTreeMap, BTreeSet};

use ambit_k8s_api::ObjectKey;

use crate::{
    condition::DerivedStatus,
    problem::{Note, Problem, Severity},
};

/// Problems, conflicts and derived statuses of objects.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// Statuses of objects as far as they depend on other objects, from which status conditions are built.
    derived_statuses: BTreeMap<ObjectKey, DerivedStatus>,
    derived_statuses_changed: BTreeSet<ObjectKey>,
    problems: BTreeMap<ObjectKey, Vec<Problem>>,
    problems_changed: BTreeSet<ObjectKey>,
    /// Problems of objects parts of which have no effect because other objects take precedence.
    conflicts: BTreeMap<ObjectKey, Vec<Problem>>,
    conflicts_changed: BTreeSet<ObjectKey>,
}

impl Reports {
    /// Returns the problems and conflicts of all objects.
    pub(crate) fn problems(&self) -> impl Iterator<Item = &Problem> {
        let own = self.problems.values().flatten();
        own.chain(self.conflicts.values().flatten())
    }

    /// Returns the problems and conflicts of one object.
    pub(crate) fn problems_of(&self, key: &ObjectKey) -> Vec<Problem> {
        let own = self.problems.get(key).into_iter().flatten();
        let conflicts = self.conflicts.get(key).into_iter().flatten();
        own.chain(conflicts).cloned().collect()
    }

    pub(crate) fn take_changed_conflicts(&mut self) -> BTreeSet<ObjectKey> {
        std::mem::take(&mut self.conflicts_changed)
    }

    pub(crate) fn has_new_problems(&self, key: &ObjectKey) -> bool {
        self.problems_changed.contains(key)
    }

    pub(crate) fn take_changed_problems(&mut self) -> BTreeSet<ObjectKey> {
        std::mem::take(&mut self.problems_changed)
    }

    pub(crate) fn set_conflicts(&mut self, key: &ObjectKey, conflicts: Vec<Note>) {
        let problem = |note: Note| Problem {
            severity: Severity::Warning,
            object: key.clone(),
            field: note.field,
            message: note.message,
            origin: None,
        };
        let conflicts: Vec<_> = conflicts.into_iter().map(problem).collect();
        if replace_problems(&mut self.conflicts, key, conflicts) {
            self.problems_changed.insert(key.clone());
            self.conflicts_changed.insert(key.clone());
        }
    }

    pub(crate) fn set_problems(&mut self, key: &ObjectKey, problems: Vec<Problem>) {
        if replace_problems(&mut self.problems, key, problems) {
            self.problems_changed.insert(key.clone());
        }
    }

    /// Returns the status of an object as far as it depends on other objects.
    pub(crate) fn derived_status(&self, key: &ObjectKey) -> Option<&DerivedStatus> {
        self.derived_statuses.get(key)
    }

    /// Returns the derived statuses of all objects that have one.
    pub(crate) fn derived_statuses(&self) -> impl Iterator<Item = (&ObjectKey, &DerivedStatus)> {
        self.derived_statuses.iter()
    }

    pub(crate) fn take_changed_derived_statuses(&mut self) -> BTreeSet<ObjectKey> {
        std::mem::take(&mut self.derived_statuses_changed)
    }

    /// Sets the derived status of an object; `None` removes it without reporting a change.
    pub(crate) fn set_derived_status(
        &mut self,
        key: &ObjectKey,
        derived_status: Option<DerivedStatus>,
    ) {
        let Some(derived_status) = derived_status else {
            self.derived_statuses.remove(key);
            return;
        };
        if self.derived_statuses.get(key) != Some(&derived_status) {
            self.derived_statuses.insert(key.clone(), derived_status);
            self.derived_statuses_changed.insert(key.clone());
        }
    }
}

/// Replaces the problems of an object. Returns whether they changed.
fn replace_problems(
    all: &mut BTreeMap<ObjectKey, Vec<Problem>>,
    key: &ObjectKey,
    problems: Vec<Problem>,
) -> bool {
    if problems.is_empty() {
        return all.remove(key).is_some();
    }
    let old = all.get(key);
    let differs = old != Some(&problems);
    if differs {
        all.insert(key.clone(), problems);
    }
    differs
}
