//! Stores fetched key sets, and marks as stale the objects that name them.

use std::collections::BTreeSet;

use ambit_k8s_api::{Kind, ObjectKey, RequestAuthentication};

use crate::{
    index::Index,
    objects::key_source::{KeyFormat, KeySource},
    relations::key_set_state::KeySetState,
};

impl Index {
    /// Stores the result of an attempt to fetch a key set, and marks as stale the objects that name it.
    pub fn set_keys(&mut self, source: &KeySource, state: KeySetState) {
        let old = self.view.key_sets.insert(source.clone(), state.clone());
        if old.is_some_and(|old| old == state) {
            return;
        }
        let mut users = Vec::new();
        if source.format == KeyFormat::TrustBundle {
            users.push(self.view.settings_key());
        }
        for (namespace, objects) in &self.view.namespaces {
            let all = objects.all_of_kind::<RequestAuthentication>().iter();
            let using = all.filter(|(_, one)| one.key_sources().any(|one| one == source));
            users.extend(using.map(|(name, _)| {
                ObjectKey::new(Kind::RequestAuthentication, namespace.clone(), name.clone())
            }));
        }
        for user in users {
            self.mark_object_stale(user);
        }
    }

    /// Drops fetched key sets that are not in `named`, the key sets that objects name.
    pub fn retain_keys(&mut self, named: &BTreeSet<KeySource>) {
        self.view
            .key_sets
            .retain(|source, _| named.contains(source));
    }
}
