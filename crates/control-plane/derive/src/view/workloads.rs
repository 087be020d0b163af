//! Fields that workload records of all kinds of objects share.

use std::collections::BTreeMap;

use ambit_k8s_api::labels;
use ambit_model::{ArcStr, NamespacedHostname, PortMap, Workload, WorkloadKind, WorkloadUid};

use crate::{labels::Labels, view::MeshView};

/// Services that a workload is an endpoint of, with their target ports.
pub(crate) type EndpointServices = BTreeMap<NamespacedHostname, PortMap>;

impl MeshView {
    /// Returns a workload record with the fields that are the same for all workloads.
    pub(crate) fn base_workload(&self, namespace: &ArcStr, name: &ArcStr) -> Workload {
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

    /// Returns the uid of a workload of this cluster: the cluster's name, `/` and `rest`.
    pub(crate) fn workload_uid(&self, rest: &str) -> WorkloadUid {
        arcstr::format!("{}/{rest}", self.config.cluster_id)
    }
}

/// Returns the canonical service name and revision by the labels; the defaults are the workload's name and `latest`.
pub(crate) fn canonical_name_and_revision(
    labels: &Labels,
    workload_name: &ArcStr,
) -> (ArcStr, ArcStr) {
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
