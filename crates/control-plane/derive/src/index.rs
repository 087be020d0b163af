//! The index of the mesh: the view of the objects, problems and states of objects, and the records that must be rendered anew.
//!
//! What a change marks for several kinds is in the files below; what it marks for one kind is in that kind's file.

pub(crate) mod change;
pub(crate) mod discovery;
pub(crate) mod exports;
pub(crate) mod foreign_proxies;
pub(crate) mod hosts;
pub(crate) mod instances;
pub(crate) mod introduction;
pub(crate) mod key_sets;
pub(crate) mod maker;
pub(crate) mod marks;
pub(crate) mod published;
pub(crate) mod reports;
pub(crate) mod trust_domains;
pub(crate) mod waypoint_rules;

use std::collections::BTreeSet;

use ambit_k8s_api::ObjectKey;

use crate::{
    condition::Standing,
    config::MeshConfig,
    index::{maker::Maker, published::Published, reports::Reports},
    problem::Problem,
    view::MeshView,
};

/// Index of the mesh's objects, as described for the module.
#[derive(Debug)]
pub struct Index {
    /// Objects and their relations: all that records are rendered from.
    pub(crate) view: MeshView,
    /// Problems, conflicts and states of objects.
    pub(crate) reports: Reports,
    /// Objects in whose place is a substitute, because no usable form of them is known.
    pub(crate) substitutes: BTreeSet<ObjectKey>,
    /// Makers whose records must be rendered anew.
    pub(crate) stale: BTreeSet<Maker>,
    pub(crate) published: Published,
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
}

impl Index {
    /// State of an object that depends on others; `None` until it was computed, and for kinds that have none.
    pub fn standing(&self, key: &ObjectKey) -> Option<&Standing> {
        self.reports.standing(key)
    }

    /// Objects of which that changed since the last call.
    pub fn take_changed_standings(&mut self) -> BTreeSet<ObjectKey> {
        self.reports.take_changed_standings()
    }
}
