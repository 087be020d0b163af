//! Directory of running pods, for the certificate authority and for readers of proxies.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use ambit_model::ArcStr;

/// Facts about a pod that the control plane itself needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFacts {
    /// Kubernetes uid; empty if unknown.
    pub uid: String,
    /// Service account of the pod.
    pub service_account: ArcStr,
    /// Node; empty while not scheduled.
    pub node: ArcStr,
    /// Neither succeeded nor failed.
    pub live: bool,
    /// Whether the pod belongs to the mesh, so that its node's proxy serves it: it is captured, or is about to be.
    pub enrolled: bool,
    /// The Gateway whose label it carries.
    pub gateway: Option<ArcStr>,
    /// First address of the pod, if it has one.
    pub address: Option<IpAddr>,
}

/// A pod of the directory.
#[derive(Clone, Copy, Debug)]
pub struct PodEntry<'a> {
    /// Namespace of the pod.
    pub namespace: &'a ArcStr,
    /// Name of the pod.
    pub name: &'a ArcStr,
    /// Facts about the pod.
    pub facts: &'a PodFacts,
}

/// Which pods run where. Follows the pods without delay.
#[derive(Debug, Default)]
pub struct PodDirectory {
    pods: HashMap<(ArcStr, ArcStr), PodFacts>,
    /// Live pods that node proxies serve, by node and identity.
    served: HashMap<ArcStr, BTreeMap<(ArcStr, ArcStr), BTreeSet<ArcStr>>>,
}

impl PodDirectory {
    /// A pod is there, or is as it is now.
    pub(crate) fn insert(&mut self, namespace: &ArcStr, name: &ArcStr, facts: PodFacts) {
        self.remove(namespace, name);
        if facts.live && facts.enrolled && !facts.node.is_empty() {
            self.served
                .entry(facts.node.clone())
                .or_default()
                .entry((namespace.clone(), facts.service_account.clone()))
                .or_default()
                .insert(name.clone());
        }
        self.pods.insert((namespace.clone(), name.clone()), facts);
    }

    /// A pod is gone.
    pub(crate) fn remove(&mut self, namespace: &ArcStr, name: &ArcStr) {
        let Some(facts) = self.pods.remove(&(namespace.clone(), name.clone())) else {
            return;
        };
        let Some(identities) = self.served.get_mut(&facts.node) else {
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
            self.served.remove(&facts.node);
        }
    }

    /// All pods, in no order.
    pub fn iter(&self) -> impl Iterator<Item = PodEntry<'_>> {
        self.pods.iter().map(|((namespace, name), facts)| PodEntry {
            namespace,
            name,
            facts,
        })
    }

    /// A pod by name.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<&PodFacts> {
        self.pods.get(&(namespace.into(), name.into()))
    }

    /// Whether the node's proxy serves a live pod of this identity.
    pub fn is_served_on(&self, node: &str, namespace: &str, service_account: &str) -> bool {
        self.served.get(node).is_some_and(|identities| {
            identities.contains_key(&(namespace.into(), service_account.into()))
        })
    }
}
