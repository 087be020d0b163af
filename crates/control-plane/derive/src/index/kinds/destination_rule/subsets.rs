//! Subsets of a service: some of its endpoints, by their labels, for backends of routes that name them.

use std::collections::BTreeMap;

use ambit_k8s_api::{
    Kind, ObjectKey, Pod, Service, ServiceEntry, WorkloadEntry, destination::DestinationRuleSpec,
};
use ambit_model::{ArcStr, DestinationPolicy, DestinationSubset};

use super::policy;
use crate::{
    Labels,
    index::{Index, MeshView, references::Edge},
    problem::{FieldError, Note},
    selects,
};

/// Most subsets of a rule.
const MOST: usize = 256;

/// One of them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SubsetInput {
    labels: Labels,
    policy: DestinationPolicy,
    ports: BTreeMap<u16, DestinationPolicy>,
}

pub(super) fn read(
    spec: &DestinationRuleSpec,
    factor: u32,
    notes: &mut Vec<Note>,
) -> Result<BTreeMap<ArcStr, SubsetInput>, FieldError> {
    let mut subsets = BTreeMap::new();
    if spec.subsets.len() > MOST {
        let message = format!("{} are too many: at most {MOST}", spec.subsets.len());
        return Err(FieldError::new("spec.subsets", message));
    }
    for (index, from) in spec.subsets.iter().enumerate() {
        let at = format!("spec.subsets[{index}]");
        if from.name.is_empty() {
            return Err(FieldError::new(format!("{at}.name"), "is needed"));
        }
        let of_rule = spec.traffic_policy.as_ref();
        let of_subset = from.traffic_policy.as_ref();
        let at_policy = format!("{at}.trafficPolicy");
        let (policy, ports) = policy::of_subset(of_rule, of_subset, &at_policy, factor, notes)?;
        let subset = SubsetInput {
            labels: from.labels.clone(),
            policy,
            ports,
        };
        if subsets.insert(ArcStr::from(&*from.name), subset).is_some() {
            let message = format!("there is another with the name {:?}", from.name);
            return Err(FieldError::new(format!("{at}.name"), message));
        }
    }
    Ok(subsets)
}

impl SubsetInput {
    pub(super) fn policies_mut(&mut self) -> impl Iterator<Item = &mut DestinationPolicy> {
        self.ports.values_mut().chain([&mut self.policy])
    }

    /// With the workloads that are in it now, of those that the object that declares the host selects.
    pub(super) fn of(&self, view: &MeshView, key: &ObjectKey) -> DestinationSubset {
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
            let pods = objects.all::<Pod>().values();
            let pods = pods.filter(|pod| pod.is_published() && is_in(&pod.labels));
            let pods = pods.map(|pod| pod.uid_in(view));
            let entries = objects.all::<WorkloadEntry>().iter();
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
    /// A workload of a namespace has other labels than before, comes or goes: it may be in other subsets.
    pub(in super::super) fn mark_subsets(
        &mut self,
        namespace: &ArcStr,
        old: Option<&Labels>,
        new: Option<&Labels>,
    ) {
        let has_subsets = self
            .view
            .references
            .of_mesh(Edge::HasSubsets)
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
        let services = objects.all::<Service>().iter();
        let services = services
            .filter(|(_, service)| is_meant(service.selector.as_ref()))
            .map(|(name, _)| ObjectKey::new(Kind::Service, namespace.clone(), name.clone()));
        let entries = objects.all::<ServiceEntry>().iter();
        let entries = entries
            .filter(|(_, entry)| is_meant(entry.selector.as_ref()))
            .map(|(name, _)| ObjectKey::new(Kind::ServiceEntry, namespace.clone(), name.clone()));
        for key in services.chain(entries).collect::<Vec<_>>() {
            for host in self.view.hosts_of(&key) {
                self.mark_only_host(host);
            }
        }
    }
}
