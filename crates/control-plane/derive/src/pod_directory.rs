//! Directory of running pods. The certificate authority and xDS look up in it which identities a node's proxy may use,
//! and readers of flow events look up node proxies.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use ambit_model::ArcStr;

/// Facts about a pod that the control plane itself needs, besides the pod's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFacts {
    /// Kubernetes uid; empty if unknown.
    pub uid: String,
    /// Service account of the pod.
    pub service_account: ArcStr,
    /// Name of the pod's node; empty while the pod is not scheduled.
    pub node: ArcStr,
    /// Whether the pod has neither succeeded nor failed.
    pub is_live: bool,
    /// Whether the pod belongs to the mesh, so that its node's proxy acts for it: it is captured, or will be.
    pub is_enrolled: bool,
    /// Gateway that the label `gateway.networking.k8s.io/gateway-name` names.
    pub gateway: Option<ArcStr>,
    /// First address of the pod, if it has one.
    pub address: Option<IpAddr>,
}

/// Pod in the [`PodDirectory`]: its name, and the facts about it.
#[derive(Clone, Copy, Debug)]
pub struct PodEntry<'a> {
    /// Namespace of the pod.
    pub namespace: &'a ArcStr,
    /// Name of the pod.
    pub name: &'a ArcStr,
    /// Facts about the pod.
    pub facts: &'a PodFacts,
}

/// Directory of pods by name, and by node and identity. Changes of pods are visible at once, before the next flush.
#[derive(Debug, Default)]
pub struct PodDirectory {
    pods: HashMap<(ArcStr, ArcStr), PodFacts>,
    /// Names of live pods of the mesh, by node and by identity (namespace, service account).
    served_identities: HashMap<ArcStr, BTreeMap<(ArcStr, ArcStr), BTreeSet<ArcStr>>>,
}

impl PodDirectory {
    /// Adds a pod, or replaces its facts.
    pub(crate) fn insert(&mut self, namespace: &ArcStr, name: &ArcStr, facts: PodFacts) {
        self.remove(namespace, name);
        if facts.is_live && facts.is_enrolled && !facts.node.is_empty() {
            self.served_identities
                .entry(facts.node.clone())
                .or_default()
                .entry((namespace.clone(), facts.service_account.clone()))
                .or_default()
                .insert(name.clone());
        }
        self.pods.insert((namespace.clone(), name.clone()), facts);
    }

    /// Removes a deleted pod.
    pub(crate) fn remove(&mut self, namespace: &ArcStr, name: &ArcStr) {
        let Some(facts) = self.pods.remove(&(namespace.clone(), name.clone())) else {
            return;
        };
        let Some(identities) = self.served_identities.get_mut(&facts.node) else {
            return;
        };
        let identity = (namespace.clone(), facts.service_account);
        if let Some(names) = identities.get_mut(&identity) {
            names.remove(name);
            if names.is_empty() {
                identities.remove(&identity);
            }
        }
        if identities.is_empty() {
            self.served_identities.remove(&facts.node);
        }
    }

    /// Returns all pods, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = PodEntry<'_>> {
        self.pods.iter().map(|((namespace, name), facts)| PodEntry {
            namespace,
            name,
            facts,
        })
    }

    /// Returns the facts about a pod by its name.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<&PodFacts> {
        self.pods.get(&(namespace.into(), name.into()))
    }

    /// Whether a live pod of the mesh with this identity runs on the node, so that the node's proxy may act for it.
    pub fn is_served_on(&self, node: &str, namespace: &str, service_account: &str) -> bool {
        self.served_identities.get(node).is_some_and(|identities| {
            identities.contains_key(&(namespace.into(), service_account.into()))
        })
    }
}
