//! Index of the mesh: the objects, their problems and derived statuses, the published records, and the stale records
//! that must be rendered again.
//!
//! The modules of `index` mark records as stale after changes that affect several kinds of objects; for a single kind,
//! the kind's own file does.

pub(crate) mod change;
pub(crate) mod discovery;
pub(crate) mod exports;
pub(crate) mod foreign_proxies;
pub(crate) mod hosts;
pub(crate) mod instances;
pub(crate) mod introduction;
pub(crate) mod key_sets;
pub(crate) mod marks;
pub(crate) mod published;
pub(crate) mod render_unit;
pub(crate) mod reports;
pub(crate) mod trust_domains;
pub(crate) mod waypoint_rules;

use std::collections::BTreeSet;

use ambit_k8s_api::ObjectKey;

use crate::{
    condition::DerivedStatus,
    config::MeshConfig,
    index::{published::PublishedRecords, render_unit::RenderUnit, reports::Reports},
    problem::Problem,
    view::MeshView,
};

/// Index of the mesh's objects, and of the records rendered from them.
#[derive(Debug)]
pub struct Index {
    /// Objects and their relations, from which records are rendered.
    pub(crate) view: MeshView,
    /// Problems, conflicts and derived statuses of objects.
    pub(crate) reports: Reports,
    /// Invalid objects that a substitute replaces, because no valid version of them is known.
    pub(crate) substituted_objects: BTreeSet<ObjectKey>,
    /// Render units whose records are stale and must be rendered again.
    pub(crate) stale_units: BTreeSet<RenderUnit>,
    pub(crate) published_records: PublishedRecords,
}

impl Index {
    /// Returns an index without objects.
    pub fn new(config: MeshConfig) -> Self {
        Self {
            view: MeshView::new(config),
            reports: Reports::default(),
            substituted_objects: BTreeSet::new(),
            stale_units: BTreeSet::new(),
            published_records: PublishedRecords::default(),
        }
    }

    /// Returns the objects and their relations, which the caller cannot change.
    pub fn view(&self) -> &MeshView {
        &self.view
    }

    // === problems ===
    /// Returns the current problems of all objects.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.reports.problems()
    }

    /// Returns the problems of one object.
    pub fn problems_of(&self, key: &ObjectKey) -> Vec<Problem> {
        self.reports.problems_of(key)
    }

    /// Returns the objects whose conflicts changed since the last call.
    pub fn take_changed_conflicts(&mut self) -> BTreeSet<ObjectKey> {
        self.reports.take_changed_conflicts()
    }

    /// Whether the problems of an object changed since the last call of [`Self::take_changed_problems`].
    pub fn has_new_problems(&self, key: &ObjectKey) -> bool {
        self.reports.has_new_problems(key)
    }

    /// Returns the objects whose problems changed since the last call.
    pub fn take_changed_problems(&mut self) -> BTreeSet<ObjectKey> {
        self.reports.take_changed_problems()
    }

    // === states ===
    /// Returns the status of an object as far as it depends on other objects; `None` before it is computed, and for
    /// kinds without a derived status.
    pub fn derived_status(&self, key: &ObjectKey) -> Option<&DerivedStatus> {
        self.reports.derived_status(key)
    }

    /// Returns the objects whose derived status changed since the last call.
    pub fn take_changed_derived_statuses(&mut self) -> BTreeSet<ObjectKey> {
        self.reports.take_changed_derived_statuses()
    }
}
