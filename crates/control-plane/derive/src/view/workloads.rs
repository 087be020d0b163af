//! What workloads have in common, whichever kind of object they are made from.

use std::collections::BTreeMap;

use ambit_k8s_api::labels;
use ambit_model::{ArcStr, NamespacedHostname, PortMap, Workload, WorkloadKind, WorkloadUid};

use crate::{labels::Labels, view::MeshView};

/// The services that a workload is an endpoint of, with their ports.
pub(crate) type Services = BTreeMap<NamespacedHostname, PortMap>;

impl MeshView {
    /// Fields that every workload has.
    pub(crate) fn base(&self, namespace: &ArcStr, name: &ArcStr) -> Workload {
        Workload {
            name: name.clone(),
            namespace: namespace.clone(),
            network: self.network.clone(),
            trust_domain: self.config.trust_domain.clone(),
            cluster_id: self.config.cluster_id.clone(),
            workload_type: WorkloadKind::Pod,
            ..Workload::default()
        }
    }

    /// The uid of a workload of this cluster.
    pub(crate) fn uid(&self, rest: &str) -> WorkloadUid {
        arcstr::format!("{}/{rest}", self.config.cluster_id)
    }
}

/// Canonical service name and revision, from labels.
pub(crate) fn canonical(labels: &Labels, workload_name: &ArcStr) -> (ArcStr, ArcStr) {
    let first = |names: [&str; 3]| {
        names
            .into_iter()
            .find_map(|name| labels.get(name).filter(|value| !value.is_empty()))
    };
    let name = first([labels::CANONICAL_NAME, labels::APP_NAME, labels::APP]);
    let revision = first([
        labels::CANONICAL_REVISION,
        labels::APP_VERSION,
        labels::VERSION,
    ]);
    (
        name.map_or_else(|| workload_name.clone(), |name| name.as_str().into()),
        revision.map_or_else(|| "latest".into(), |revision| revision.as_str().into()),
    )
}
