//! Hosts that Services and ServiceEntries declare.

use ambit_k8s_api::{Kind, ObjectKey, Service, ServiceEntry};
use ambit_model::ArcStr;

use crate::{relations::references::ReferenceKind, view::MeshView};

impl MeshView {
    /// Returns the hosts that a Service or ServiceEntry declares.
    pub(crate) fn hosts_of(&self, key: &ObjectKey) -> Vec<ArcStr> {
        match key.kind {
            Kind::Service => {
                let domain = &self.config.cluster_domain;
                let service = self.get::<Service>(key);
                service
                    .map(|one| one.hostname(domain))
                    .into_iter()
                    .collect()
            }
            Kind::ServiceEntry => {
                let entry = self.get::<ServiceEntry>(key);
                entry.map(|one| one.hosts.clone()).unwrap_or_default()
            }
            _ => Vec::new(),
        }
    }

    /// Whether any pod of a namespace has a label of its own that selects a waypoint or `none`.
    pub(crate) fn has_pods_with_waypoint_label(&self, namespace: &ArcStr) -> bool {
        self.references
            .is_referenced(ReferenceKind::PodWaypointLabel, namespace)
    }
}
