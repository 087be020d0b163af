//! Which client sees which collection, and which records of it.

use std::sync::Arc;

use ambit_model::ArcStr;

use super::{
    entry::{Collection, Entry},
    resource::ResourceType,
    store::Store,
};

/// A client, as far as it matters for what it sees.
#[derive(Clone, Debug)]
pub struct Client {
    /// Its Kubernetes node; may be empty.
    pub node: ArcStr,
}

impl Client {
    /// What it sees of a type of resource; `None`: nothing, as if the type were not served. Every client may
    /// see all of the mesh.
    pub fn view(&self, of: ResourceType) -> Option<View> {
        Some(View { of })
    }
}

/// What a client sees of a type of resource. Clients with equal views share what is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    of: ResourceType,
}

impl View {
    /// The type.
    pub fn resource_type(&self) -> ResourceType {
        self.of
    }

    /// Where its records are.
    pub(super) fn collection(&self) -> Collection {
        self.of.collection()
    }

    /// Whether the client sees a record.
    pub(super) fn has(&self, entry: &Entry) -> bool {
        self.of.has(entry)
    }

    /// A record by name, if the client sees it.
    pub(super) fn entry<'a>(&self, store: &'a Store, name: &str) -> Option<&'a Arc<Entry>> {
        let entry = store.entry(self.collection(), name);
        entry.filter(|entry| self.has(entry))
    }

    /// All records that the client sees, in no order.
    pub(super) fn entries<'a>(&self, store: &'a Store) -> impl Iterator<Item = &'a Arc<Entry>> {
        let entries = store.entries(self.collection());
        entries.filter(|entry| self.has(entry))
    }
}
