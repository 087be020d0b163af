//! Key sets that objects name by address: which are wanted, and what is known of each. Who fetches them says so; here
//! nothing is fetched.

use std::{collections::BTreeSet, time::Duration};

use ambit_k8s_api::{Kind, ObjectKey, RequestAuthentication};
use ambit_model::ArcStr;

use super::Index;

/// Where a key set comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeySource {
    /// Its address; that of the issuer if [`Self::is_issuer`].
    pub url: ArcStr,
    /// Whether the issuer says where its key set is (OpenID Connect Discovery 1.0).
    pub is_issuer: bool,
    /// How long fetching it may take.
    pub timeout: Duration,
}

/// What is known of a key set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyState {
    /// The set, as it was last had.
    pub keys: Option<ArcStr>,
    /// Why the last attempt to have it failed.
    pub trouble: Option<ArcStr>,
}

impl Index {
    /// The key sets that objects name.
    pub fn key_sources(&self) -> BTreeSet<KeySource> {
        let objects = self.namespaces.values();
        let all = objects.flat_map(|objects| objects.all::<RequestAuthentication>().values());
        all.flat_map(|one| one.sources().cloned()).collect()
    }

    /// A key set was fetched, or could not be.
    pub fn set_keys(&mut self, source: &KeySource, state: KeyState) {
        let old = self.key_sets.insert(source.clone(), state.clone());
        if old.is_some_and(|old| old == state) {
            return;
        }
        let mut users = Vec::new();
        for (namespace, objects) in &self.namespaces {
            let all = objects.all::<RequestAuthentication>().iter();
            let using = all.filter(|(_, one)| one.sources().any(|one| one == source));
            users.extend(using.map(|(name, _)| {
                ObjectKey::new(Kind::RequestAuthentication, namespace.clone(), name.clone())
            }));
        }
        for user in users {
            self.mark(user);
        }
    }

    /// Forgets key sets that no object names any more.
    pub fn forget_keys(&mut self, wanted: &BTreeSet<KeySource>) {
        self.key_sets.retain(|source, _| wanted.contains(source));
    }

    /// What is known of a key set; `None` while nobody has tried to fetch it.
    pub(crate) fn keys(&self, source: &KeySource) -> Option<&KeyState> {
        self.key_sets.get(source)
    }
}
