//! Marks ServiceEntries whose hosts may be seen by other namespaces than before.

use ambit_k8s_api::{Kind, ObjectKey, ServiceEntry};
use ambit_model::ArcStr;

use crate::{index::Index, relations::references::Edge};

impl Index {
    /// Marks the entries with hosts that are short names of Services of a namespace, which exists now, or no more.
    pub(crate) fn mark_short_names_of(&mut self, namespace: &ArcStr) {
        let entries: Vec<_> = self
            .view
            .references
            .of(Edge::ShortName, namespace)
            .cloned()
            .collect();
        self.mark_claims(entries);
    }

    /// Marks every entry: the administrator's setting has changed.
    pub(crate) fn mark_exports(&mut self) {
        let entries: Vec<_> = self
            .view
            .all_objects()
            .flat_map(|(namespace, objects)| {
                let names = objects.all::<ServiceEntry>().keys();
                names
                    .map(|name| ObjectKey::new(Kind::ServiceEntry, namespace.clone(), name.clone()))
            })
            .collect();
        self.mark_claims(entries);
    }

    /// Marks entries that may have other hosts than before, or are seen by other namespaces.
    fn mark_claims(&mut self, entries: Vec<ObjectKey>) {
        for key in entries {
            for host in self.view.hosts_of(&key) {
                self.mark_declarers(&host);
                self.mark_host(host);
            }
            self.mark_attached_to(&key);
        }
    }
}
