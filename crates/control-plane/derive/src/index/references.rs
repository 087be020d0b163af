//! Which objects name something: what must be rendered anew when that changes.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
};

use ambit_k8s_api::ObjectKey;

/// Objects by what they name.
#[derive(Debug)]
pub(crate) struct References<N>(HashMap<N, BTreeSet<ObjectKey>>);

impl<N> Default for References<N> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<N: Eq + Hash> References<N> {
    /// An object names other things than before.
    pub(crate) fn replace(
        &mut self,
        key: &ObjectKey,
        old: impl IntoIterator<Item = N>,
        new: impl IntoIterator<Item = N>,
    ) {
        for name in old {
            if let Some(keys) = self.0.get_mut(&name) {
                keys.remove(key);
                if keys.is_empty() {
                    self.0.remove(&name);
                }
            }
        }
        for name in new {
            self.0.entry(name).or_default().insert(key.clone());
        }
    }

    /// All that is named.
    pub(crate) fn names(&self) -> impl Iterator<Item = &N> {
        self.0.keys()
    }

    /// The objects that name it.
    pub(crate) fn of(&self, name: &N) -> impl Iterator<Item = &ObjectKey> {
        self.0.get(name).into_iter().flatten()
    }
}
