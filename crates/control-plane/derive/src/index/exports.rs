//! Marks ServiceEntries as stale if their hosts may have become visible or invisible in other namespaces.

use ambit_k8s_api::{Kind, ObjectKey, ServiceEntry};
use ambit_model::ArcStr;

use crate::{index::Index, relations::references::ReferenceKind};

impl Index {
    /// Marks as stale the ServiceEntries with hosts that are short names of Services of a namespace, which has been
    /// created or deleted.
    pub(crate) fn mark_short_names_stale(&mut self, namespace: &ArcStr) {
        let entries: Vec<_> = self
            .view
            .references
            .referrers(ReferenceKind::ShortNameNamespace, namespace)
            .cloned()
            .collect();
        self.mark_host_claims_stale(entries);
    }

    /// Marks as stale every ServiceEntry, after a change of the default visibility (`defaultServiceExportTo`).
    pub(crate) fn mark_service_entries_stale(&mut self) {
        let entries: Vec<_> = self
            .view
            .all_objects()
            .flat_map(|(namespace, objects)| {
                let names = objects.all_of_kind::<ServiceEntry>().keys();
                names
                    .map(|name| ObjectKey::new(Kind::ServiceEntry, namespace.clone(), name.clone()))
            })
            .collect();
        self.mark_host_claims_stale(entries);
    }

    /// Marks as stale the records of ServiceEntries that may declare other hosts than before, or have another
    /// visibility.
    fn mark_host_claims_stale(&mut self, entries: Vec<ObjectKey>) {
        for key in entries {
            for host in self.view.hosts_of(&key) {
                self.mark_declaring_entries_stale(&host);
                self.mark_host_stale(host);
            }
            self.mark_attached_objects_stale(&key);
        }
    }
}
