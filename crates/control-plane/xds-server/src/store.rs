//! Store of every published record, the revisions of changes, and indexes of records by key.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use ambit_derive::Delta;
use ambit_model::ArcStr;

use crate::{
    batch::{Batch, BatchCache, Snapshot, StepContent},
    encoded_record::{Collection, EncodedRecord, RecordKind},
    scope::View,
};

/// Maximum number of removed names in the log; a client that missed more has to reconnect.
const MAX_LOGGED_REMOVALS: usize = 100_000;
/// Maximum age, in revisions, of a cached snapshot that new clients get; later changes follow in the next push.
const MAX_SNAPSHOT_AGE_REVISIONS: usize = 1000;

/// Published records. Each change of a record increments the revision.
#[derive(Debug, Default)]
pub struct Store {
    revision: u64,
    collections: HashMap<Collection, RecordCollection>,
    batch_cache: BatchCache,
}

/// Records of one collection.
#[derive(Debug, Default)]
struct RecordCollection {
    records: HashMap<ArcStr, Arc<EncodedRecord>>,
    /// Names of changed records, by the revision of their latest change, which may be a removal.
    change_log: BTreeMap<u64, ArcStr>,
    latest_changes: HashMap<ArcStr, u64>,
    removal_log: VecDeque<(u64, ArcStr)>,
    /// Revision up to which removals may be missing from the log.
    removals_complete_from: u64,
    index: NameIndex,
}

/// Record names by alias, by service, and by node.
#[derive(Debug, Default)]
struct NameIndex {
    by_alias: HashMap<ArcStr, BTreeSet<ArcStr>>,
    by_service: HashMap<ArcStr, BTreeSet<ArcStr>>,
    by_node: HashMap<ArcStr, BTreeSet<ArcStr>>,
}

impl Store {
    /// Applies derived changes. Returns the number of changed records.
    pub fn update(&mut self, delta: &Delta) -> usize {
        let before = self.revision;
        for (uid, workload) in &delta.workloads {
            let entry = workload.as_deref().map(EncodedRecord::from_workload);
            self.set_record(Collection::Addresses, uid, entry);
        }
        for (name, service) in &delta.services {
            let entry = service.as_deref().map(EncodedRecord::from_service);
            self.set_record(Collection::Addresses, &name.to_string().into(), entry);
        }
        for (key, policy) in &delta.policies {
            let entry = policy.as_deref().map(EncodedRecord::from_policy);
            self.set_record(Collection::Policies, &key.to_string().into(), entry);
        }
        for (key, record) in &delta.waypoint_records {
            let name = ArcStr::from(key.to_string());
            let entry = record.as_deref();
            let entry = entry.map(|record| EncodedRecord::from_waypoint(name.clone(), record));
            self.set_record(Collection::Waypoint(key.record_type), &name, entry);
        }
        usize::try_from(self.revision - before).unwrap_or(usize::MAX)
    }

    fn set_record(&mut self, collection: Collection, name: &ArcStr, new: Option<EncodedRecord>) {
        let records = self.collections.entry(collection).or_default();
        records.set_record(&mut self.revision, name, new);
    }

    /// Returns the store's current revision.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the record of this name in a collection.
    pub fn record(&self, collection: Collection, name: &str) -> Option<&Arc<EncodedRecord>> {
        self.collections.get(&collection)?.records.get(name)
    }

    /// Iterates over the records of a collection, in no particular order.
    pub fn records(&self, collection: Collection) -> impl Iterator<Item = &Arc<EncodedRecord>> {
        let records = self.collections.get(&collection).into_iter();
        records.flat_map(|records| records.records.values())
    }

    /// Returns the record of this name, if the view includes it.
    pub(crate) fn visible_record(&self, view: &View, name: &str) -> Option<&Arc<EncodedRecord>> {
        let entry = self.record(view.collection(), name);
        entry.filter(|entry| view.contains(entry))
    }

    /// Iterates over the records of a view, in no particular order.
    pub(crate) fn visible_records(&self, view: &View) -> impl Iterator<Item = &Arc<EncodedRecord>> {
        let entries = self.records(view.collection());
        entries.filter(|entry| view.contains(entry))
    }

    /// Returns a current or slightly older snapshot of a view.
    pub fn snapshot(&self, view: &View) -> Snapshot {
        let is_recent = |revision| {
            self.changed_since(view.collection(), revision)
                .is_some_and(|changed| {
                    changed.take(MAX_SNAPSHOT_AGE_REVISIONS).count() < MAX_SNAPSHOT_AGE_REVISIONS
                })
        };
        self.batch_cache.snapshot(view, is_recent, || {
            let mut resources: Vec<_> = self.visible_records(view).cloned().collect();
            resources.sort_unstable_by(|a, b| a.name.cmp(&b.name));
            Snapshot {
                revision: self.revision,
                batch: Arc::new(Batch::new(view.clone(), resources, Vec::new())),
            }
        })
    }

    /// Returns the changes of a view since revision `from`; `None` if the log of removals no longer reaches back to it.
    pub fn step(&self, view: &View, part: StepContent, from: u64) -> Option<Arc<Batch>> {
        self.batch_cache
            .step(view, part, (from, self.revision), || {
                let (mut there, mut gone) = (Vec::new(), Vec::new());
                let collection = view.collection();
                for name in self.changed_since(collection, from)? {
                    match self.record(collection, name) {
                        Some(entry) if view.contains(entry) => there.push(Arc::clone(entry)),
                        None if view.covers(name) => gone.push(name.clone()),
                        Some(_) | None => {}
                    }
                }
                match part {
                    StepContent::RecordsAndRemovals => {}
                    StepContent::RecordsOnly => gone.clear(),
                    StepContent::RemovalsOnly => there.clear(),
                }
                Some(Batch::new(view.clone(), there, gone))
            })
    }

    /// Returns the number of records in a collection.
    pub fn count(&self, collection: Collection) -> usize {
        let records = self.collections.get(&collection);
        records.map_or(0, |records| records.records.len())
    }

    /// Returns the names that changed after a revision, oldest change first; `None` if the log of removals no longer
    /// reaches back to it.
    pub fn changed_since(
        &self,
        collection: Collection,
        revision: u64,
    ) -> Option<impl Iterator<Item = &ArcStr>> {
        let records = self.collections.get(&collection);
        let is_remembered =
            records.is_none_or(|records| revision >= records.removals_complete_from);
        let after = revision.saturating_add(1);
        let changes = records.map(|records| records.change_log.range(after..));
        is_remembered.then(|| changes.into_iter().flatten().map(|(_, name)| name))
    }

    /// Returns the names of the records with this alias.
    pub fn names_by_alias(
        &self,
        collection: Collection,
        alias: &str,
    ) -> impl Iterator<Item = &ArcStr> {
        self.names_in_index(collection, |index| index.by_alias.get(alias))
    }

    /// Returns the names of the workloads that are endpoints of a service.
    pub fn endpoint_names(
        &self,
        collection: Collection,
        name: &str,
    ) -> impl Iterator<Item = &ArcStr> {
        self.names_in_index(collection, |index| index.by_service.get(name))
    }

    /// Returns the names of the workloads on a node.
    pub fn names_on_node(
        &self,
        collection: Collection,
        node: &str,
    ) -> impl Iterator<Item = &ArcStr> {
        self.names_in_index(collection, |index| index.by_node.get(node))
    }

    fn names_in_index<'a>(
        &'a self,
        collection: Collection,
        by: impl Fn(&'a NameIndex) -> Option<&'a BTreeSet<ArcStr>>,
    ) -> impl Iterator<Item = &'a ArcStr> {
        let records = self.collections.get(&collection);
        let names = records.and_then(|records| by(&records.index));
        names.into_iter().flatten()
    }
}

impl NameIndex {
    fn insert(&mut self, entry: &EncodedRecord) {
        let insert = |map: &mut HashMap<ArcStr, BTreeSet<ArcStr>>, key: &ArcStr| {
            map.entry(key.clone())
                .or_default()
                .insert(entry.name.clone());
        };
        for alias in &entry.aliases {
            insert(&mut self.by_alias, alias);
        }
        if let RecordKind::Workload { node, services } = &entry.kind {
            if !node.is_empty() {
                insert(&mut self.by_node, node);
            }
            for service in services {
                insert(&mut self.by_service, service);
            }
        }
    }

    fn remove(&mut self, entry: &EncodedRecord) {
        let remove = |map: &mut HashMap<ArcStr, BTreeSet<ArcStr>>, key: &ArcStr| {
            if let Some(names) = map.get_mut(key) {
                names.remove(&entry.name);
                if names.is_empty() {
                    map.remove(key);
                }
            }
        };
        for alias in &entry.aliases {
            remove(&mut self.by_alias, alias);
        }
        if let RecordKind::Workload { node, services } = &entry.kind {
            remove(&mut self.by_node, node);
            for service in services {
                remove(&mut self.by_service, service);
            }
        }
    }
}

impl RecordCollection {
    fn set_record(&mut self, revision: &mut u64, name: &ArcStr, new: Option<EncodedRecord>) {
        let is_removed = new.is_none();
        let same = match (self.records.get(name), &new) {
            (Some(old), Some(new)) => old.version == new.version && old.aliases == new.aliases,
            (None, None) => true,
            _ => false,
        };
        if same {
            return;
        }
        if let Some(old) = self.records.get(name) {
            self.index.remove(old);
        }
        if let Some(entry) = &new {
            self.index.insert(entry);
        }
        match new {
            Some(entry) => drop(self.records.insert(name.clone(), Arc::new(entry))),
            None => drop(self.records.remove(name)),
        }
        *revision += 1;
        if let Some(before) = self.latest_changes.insert(name.clone(), *revision) {
            self.change_log.remove(&before);
        }
        self.change_log.insert(*revision, name.clone());
        if is_removed {
            self.removal_log.push_back((*revision, name.clone()));
            if self.removal_log.len() > MAX_LOGGED_REMOVALS {
                self.trim_removal_log();
            }
        }
    }

    fn trim_removal_log(&mut self) {
        let Some((at, name)) = self.removal_log.pop_front() else {
            return;
        };
        if self.latest_changes.get(&name) == Some(&at) {
            self.latest_changes.remove(&name);
            self.change_log.remove(&at);
            self.removals_complete_from = self.removals_complete_from.max(at);
        }
    }
}
