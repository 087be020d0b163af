//! Subsets of a service: some of its endpoints, selected by labels, for backends of routes that name a subset.

use ambit_k8s_api::{Kind, ObjectKey, Pod, Service, ServiceEntry, WorkloadEntry};
use ambit_model::{ArcStr, DestinationSubset};

use crate::{
    index::Index,
    labels::{Labels, selects},
    objects::destination_rule::subsets::SubsetInput,
    relations::references::ReferenceKind,
    view::MeshView,
};

impl SubsetInput {
    /// Returns the subset with its current workloads: endpoints of the object that declares the host, with the subset's
    /// labels.
    pub(crate) fn resolve_subset(&self, view: &MeshView, key: &ObjectKey) -> DestinationSubset {
        let selector = match key.kind {
            Kind::Service => view.get::<Service>(key).map(|one| one.selector.as_ref()),
            _ => view
                .get::<ServiceEntry>(key)
                .map(|one| one.selector.as_ref()),
        };
        let selector = selector.flatten();
        let is_in = |labels: &Labels| {
            selects(&self.labels, labels) && selector.is_none_or(|all| selects(all, labels))
        };
        let objects = view.objects(&key.namespace).into_iter();
        let workloads = objects.flat_map(|objects| {
            let pods = objects.all_of_kind::<Pod>().values();
            let pods = pods.filter(|pod| pod.is_published() && is_in(&pod.labels));
            let pods = pods.map(|pod| pod.workload_uid(view));
            let entries = objects.all_of_kind::<WorkloadEntry>().iter();
            let entries = entries.filter(|(_, entry)| is_in(&entry.endpoint.labels));
            pods.chain(entries.map(|(name, _)| view.uid_of_entry(&key.namespace, name)))
        });
        DestinationSubset {
            policy: self.policy.clone(),
            ports: self.ports.clone(),
            workloads: workloads.collect(),
        }
    }
}

impl Index {
    /// Marks as stale the services that a created, changed or deleted workload is an endpoint of, since their subsets
    /// may have changed.
    pub(crate) fn mark_endpoint_subsets_stale(
        &mut self,
        namespace: &ArcStr,
        old: Option<&Labels>,
        new: Option<&Labels>,
    ) {
        let has_subsets = self
            .view
            .references
            .mesh_referrers(ReferenceKind::RuleWithSubsets)
            .next()
            .is_some();
        if !has_subsets || old == new {
            return;
        }
        let Some(objects) = self.view.objects(namespace) else {
            return;
        };
        let is_meant = |selector: Option<&Labels>| {
            let mut both = old.into_iter().chain(new);
            selector.is_none_or(|selector| both.any(|labels| selects(selector, labels)))
        };
        let services = objects.all_of_kind::<Service>().iter();
        let services = services
            .filter(|(_, service)| is_meant(service.selector.as_ref()))
            .map(|(name, _)| ObjectKey::new(Kind::Service, namespace.clone(), name.clone()));
        let entries = objects.all_of_kind::<ServiceEntry>().iter();
        let entries = entries
            .filter(|(_, entry)| is_meant(entry.selector.as_ref()))
            .map(|(name, _)| ObjectKey::new(Kind::ServiceEntry, namespace.clone(), name.clone()));
        for key in services.chain(entries).collect::<Vec<_>>() {
            for host in self.view.hosts_of(&key) {
                self.mark_only_host_stale(host);
            }
        }
    }
}
