//! The records as last published, and what made each.

use std::{collections::HashMap, hash::Hash, sync::Arc};

use ambit_model::{Authorization, NamespacedHostname, PolicyKey, Workload, WorkloadUid};

use super::Maker;
use crate::{Delta, ServiceRecord, index::kind::Rendered};

/// All records.
#[derive(Debug, Default)]
pub(super) struct Published {
    workloads: Records<WorkloadUid, Workload>,
    services: Records<NamespacedHostname, ServiceRecord>,
    policies: Records<PolicyKey, Authorization>,
}

impl Published {
    /// Replaces all that something made; `delta` gets what differs.
    pub(super) fn replace(&mut self, maker: &Maker, new: Rendered, delta: &mut Delta) {
        let Rendered {
            workloads,
            services,
            policies,
            conflicts: _,
        } = new;
        let uid = |workload: &Workload| workload.uid.clone();
        self.workloads
            .replace(maker, workloads, uid, &mut delta.workloads);
        let name = |record: &ServiceRecord| record.service.namespaced_hostname();
        self.services
            .replace(maker, services, name, &mut delta.services);
        self.policies
            .replace(maker, policies, Authorization::key, &mut delta.policies);
    }
}

/// The records of one type.
#[derive(Debug)]
struct Records<N, R> {
    by_name: HashMap<N, Arc<R>>,
    made_by: HashMap<Maker, Vec<N>>,
}

impl<N, R> Default for Records<N, R> {
    fn default() -> Self {
        Self {
            by_name: HashMap::new(),
            made_by: HashMap::new(),
        }
    }
}

type Changed<N, R> = Vec<(N, Option<Arc<R>>)>;

impl<N: Clone + Eq + Hash, R: PartialEq> Records<N, R> {
    fn replace(
        &mut self,
        maker: &Maker,
        new: Vec<R>,
        name: impl Fn(&R) -> N,
        delta: &mut Changed<N, R>,
    ) {
        let names: Vec<N> = new.iter().map(&name).collect();
        let old = if names.is_empty() {
            self.made_by.remove(maker)
        } else {
            self.made_by.insert(maker.clone(), names.clone())
        };
        let old = old.into_iter().flatten();
        for gone in old.filter(|name| !names.contains(name)) {
            self.by_name.remove(&gone);
            delta.push((gone, None));
        }
        for (name, record) in names.into_iter().zip(new) {
            let same = self.by_name.get(&name).is_some_and(|old| **old == record);
            if !same {
                let record = Arc::new(record);
                self.by_name.insert(name.clone(), Arc::clone(&record));
                delta.push((name, Some(record)));
            }
        }
    }
}
