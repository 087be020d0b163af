//! What a change makes stale, where it concerns objects of several kinds.

use std::collections::BTreeSet;

use ambit_k8s_api::{EndpointSlice, Kind, ObjectKey, Pod, ServiceEntry, WorkloadEntry};
use ambit_model::ArcStr;

use super::{Index, Maker};
use crate::{Labels, selects};

impl Index {
    /// All that an object makes.
    pub(crate) fn mark(&mut self, key: ObjectKey) {
        self.stale.insert(Maker::Object(key));
    }

    /// The records of a host.
    pub(crate) fn mark_host(&mut self, host: ArcStr) {
        self.stale.insert(Maker::Host(host));
    }

    /// The policy that refuses all plaintext.
    pub(crate) fn mark_static_strict(&mut self) {
        self.stale.insert(Maker::StaticStrict);
    }

    /// All that entries make, for instance because addresses that they name change hands.
    pub(crate) fn mark_entries(&mut self, entries: BTreeSet<ObjectKey>) {
        for key in entries {
            if key.kind == Kind::ServiceEntry {
                let entry = self.get::<ServiceEntry>(&key);
                let hosts = entry.map(|entry| entry.hosts.clone());
                for host in hosts.into_iter().flatten() {
                    self.mark_host(host);
                }
            }
            self.mark(key);
        }
    }

    /// The workloads that a selector selects: pods and workload entries.
    pub(crate) fn mark_selected(&mut self, namespace: &ArcStr, selector: Option<&Labels>) {
        let (Some(selector), Some(objects)) = (selector, self.namespaces.get(namespace)) else {
            return;
        };
        let key = |kind, name: &ArcStr| {
            Maker::Object(ObjectKey::new(kind, namespace.clone(), name.clone()))
        };
        let pods = objects.all::<Pod>().iter();
        let pods = pods.filter(|(_, pod)| selects(selector, &pod.labels));
        let entries = objects.all::<WorkloadEntry>().iter();
        let entries = entries.filter(|(_, entry)| selects(selector, &entry.endpoint.labels));
        self.stale
            .extend(pods.map(|(name, _)| key(Kind::Pod, name)));
        self.stale
            .extend(entries.map(|(name, _)| key(Kind::WorkloadEntry, name)));
    }

    /// The service entries of a namespace whose endpoints are workloads, which selectors may select.
    pub(crate) fn mark_endpoints_of_entries(&mut self, namespace: &ArcStr) {
        let Some(objects) = self.namespaces.get(namespace) else {
            return;
        };
        let entries = objects.all::<ServiceEntry>().iter();
        let with_endpoints = entries.filter(|(_, entry)| !entry.endpoints.is_empty());
        let keys = with_endpoints.map(|(name, _)| {
            Maker::Object(ObjectKey::new(
                Kind::ServiceEntry,
                namespace.clone(),
                name.clone(),
            ))
        });
        self.stale.extend(keys);
    }

    /// Every workload of a namespace.
    pub(crate) fn mark_namespace(&mut self, namespace: &ArcStr) {
        let Some(objects) = self.namespaces.get(namespace) else {
            return;
        };
        let key = |kind: Kind| {
            move |name: &ArcStr| {
                Maker::Object(ObjectKey::new(kind, namespace.clone(), name.clone()))
            }
        };
        let pods = objects.all::<Pod>().keys();
        self.stale.extend(pods.map(key(Kind::Pod)));
        let workload_entries = objects.all::<WorkloadEntry>().keys();
        self.stale
            .extend(workload_entries.map(key(Kind::WorkloadEntry)));
        let service_entries = objects.all::<ServiceEntry>().keys();
        self.stale
            .extend(service_entries.map(key(Kind::ServiceEntry)));
        let slices = objects.all::<EndpointSlice>().keys();
        self.stale.extend(slices.map(key(Kind::EndpointSlice)));
    }

    /// Every workload, and every host.
    pub(crate) fn mark_mesh(&mut self) {
        let hosts = self.declares.keys().cloned().map(Maker::Host);
        self.stale.extend(hosts);
        self.mark_workloads();
    }

    /// Every workload.
    pub(crate) fn mark_workloads(&mut self) {
        let namespaces: Vec<_> = self.namespaces.keys().cloned().collect();
        for namespace in &namespaces {
            self.mark_namespace(namespace);
        }
    }
}
