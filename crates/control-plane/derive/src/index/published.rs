//! Published records: the last version of each, by the unit that renders it.

use std::{collections::HashMap, hash::Hash, sync::Arc};

use ambit_model::{
    Authorization, NamespacedHostname, PolicyKey, WaypointRecord, WaypointRecordKey, Workload,
    WorkloadUid,
};

use crate::{
    index::render_unit::RenderUnit,
    records::{ChangedRecords, Delta, ServiceRecord},
    view::rendered::RenderedRecords,
};

/// Last published records of all types, to find out which rendered records differ.
#[derive(Debug, Default)]
pub(crate) struct PublishedRecords {
    workloads: RecordsOfType<WorkloadUid, Workload>,
    services: RecordsOfType<NamespacedHostname, ServiceRecord>,
    policies: RecordsOfType<PolicyKey, Authorization>,
    waypoint_records: RecordsOfType<WaypointRecordKey, WaypointRecord>,
}

impl PublishedRecords {
    /// Replaces the records of one unit, and adds those that changed or were removed to `delta`.
    pub(crate) fn replace(&mut self, unit: &RenderUnit, new: RenderedRecords, delta: &mut Delta) {
        let RenderedRecords {
            workloads,
            services,
            policies,
            waypoint_records,
            conflicts: _,
        } = new;
        let named = workloads.into_iter().map(|one| (one.uid.clone(), one));
        self.workloads.replace(unit, named, &mut delta.workloads);
        let named = services.into_iter();
        let named = named.map(|one| (one.service.namespaced_hostname(), one));
        self.services.replace(unit, named, &mut delta.services);
        let named = policies.into_iter().map(|one| (one.key(), one));
        self.policies.replace(unit, named, &mut delta.policies);
        let named = waypoint_records
            .into_iter()
            .map(|(gateway, one)| (WaypointRecordKey::new(gateway, &one), one));
        self.waypoint_records
            .replace(unit, named, &mut delta.waypoint_records);
    }
}

/// Last published records of one type, by name and by render unit.
#[derive(Debug)]
struct RecordsOfType<N, R> {
    by_name: HashMap<N, Arc<R>>,
    by_unit: HashMap<RenderUnit, Vec<N>>,
}

impl<N, R> Default for RecordsOfType<N, R> {
    fn default() -> Self {
        Self {
            by_name: HashMap::new(),
            by_unit: HashMap::new(),
        }
    }
}

impl<N: Clone + Eq + Hash, R: PartialEq> RecordsOfType<N, R> {
    fn replace(
        &mut self,
        unit: &RenderUnit,
        new: impl Iterator<Item = (N, R)>,
        delta: &mut ChangedRecords<N, R>,
    ) {
        let new: Vec<(N, R)> = new.collect();
        let names: Vec<N> = new.iter().map(|(name, _)| name.clone()).collect();
        let old = if names.is_empty() {
            self.by_unit.remove(unit)
        } else {
            self.by_unit.insert(unit.clone(), names.clone())
        };
        let old = old.into_iter().flatten();
        for gone in old.filter(|name| !names.contains(name)) {
            self.by_name.remove(&gone);
            delta.push((gone, None));
        }
        for (name, record) in new {
            let same = self.by_name.get(&name).is_some_and(|old| **old == record);
            if !same {
                let record = Arc::new(record);
                self.by_name.insert(name.clone(), Arc::clone(&record));
                delta.push((name, Some(record)));
            }
        }
    }
}
