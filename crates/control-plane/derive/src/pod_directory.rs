//! Which pods run where: what the certificate authority asks.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ambit_model::ArcStr;

/// What the certificate authority must know of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFacts {
    /// Kubernetes uid; empty if unknown.
    pub uid: String,
    /// Service account.
    pub service_account: ArcStr,
    /// Node; empty while not scheduled.
    pub node: ArcStr,
    /// Neither succeeded nor failed.
    pub live: bool,
}

/// Which pods run where. Follows the pods without delay.
#[derive(Debug, Default)]
pub struct PodDirectory {
    pods: HashMap<(ArcStr, ArcStr), PodFacts>,
    /// Live pods by node and identity.
    placed: HashMap<ArcStr, BTreeMap<(ArcStr, ArcStr), BTreeSet<ArcStr>>>,
}

impl PodDirectory {
    /// A pod is there, or is as it is now.
    pub(crate) fn insert(&mut self, namespace: &ArcStr, name: &ArcStr, facts: PodFacts) {
        self.remove(namespace, name);
        if facts.live && !facts.node.is_empty() {
            self.placed
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
        let Some(identities) = self.placed.get_mut(&facts.node) else {
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
            self.placed.remove(&facts.node);
        }
    }

    /// A pod by name.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<&PodFacts> {
        self.pods.get(&(namespace.into(), name.into()))
    }

    /// Whether a live pod of this identity is on the node.
    pub fn runs_on(&self, node: &str, namespace: &str, service_account: &str) -> bool {
        self.placed.get(node).is_some_and(|identities| {
            identities.contains_key(&(namespace.into(), service_account.into()))
        })
    }
}
