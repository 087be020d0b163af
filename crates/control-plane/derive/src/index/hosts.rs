//! Marks records as stale after changes of declared hosts: of the objects that declare a host, and of the hosts that a
//! wildcard covers.

use ambit_k8s_api::{Kind, ObjectKey, ServiceEntry};
use ambit_model::ArcStr;

use crate::{index::Index, relations::references::ReferenceKind};

impl Index {
    /// Marks as stale the hosts that a wildcard covers, since the wildcard's waypoints may have changed.
    pub(crate) fn mark_narrower_hosts_stale(&mut self, host: &ArcStr) {
        if !host.starts_with('*') {
            return;
        }
        for below in self.view.hosts_matching(host) {
            self.mark_only_host_stale(below);
        }
    }

    /// Updates the hosts that an object declares, and marks their records and the endpoints of all objects that declare
    /// them.
    pub(crate) fn update_declared_hosts(
        &mut self,
        key: &ObjectKey,
        old: Vec<ArcStr>,
        new: Vec<ArcStr>,
    ) {
        self.view
            .references
            .replace(ReferenceKind::DeclaredHost, key, old.clone(), new.clone());
        for host in old.into_iter().chain(new) {
            self.mark_declaring_entries_stale(&host);
            self.mark_host_stale(host);
        }
    }

    /// Marks as stale the ServiceEntries that declare a host, and their endpoints, since another entry may now own the
    /// host's record.
    pub(crate) fn mark_declaring_entries_stale(&mut self, host: &ArcStr) {
        let entries = self.view.objects_declaring(host);
        let entries = entries.filter(|key| key.kind == Kind::ServiceEntry);
        for key in entries.cloned().collect::<Vec<_>>() {
            let entry = self.view.get::<ServiceEntry>(&key);
            let selector = entry.and_then(|entry| entry.selector.clone());
            self.mark_selected_workloads_stale(&key.namespace, selector.as_ref());
            self.mark_object_stale(key);
        }
    }
}
