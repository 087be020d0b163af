//! Objects of a cluster that the checks evaluate.

use ambit_install::{
    inventory::Inventory,
    object::{label, name},
    remove,
};
use ambit_k8s_api::{Deployment, Namespace, Node, Pod};
use k8s_openapi::{
    api::{
        apps::v1::DaemonSet,
        core::v1::{ConfigMap, ResourceQuota},
        networking::v1::NetworkPolicy,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};

use crate::{istio, membership::MembershipRules};

/// Objects of a cluster that the checks evaluate, read once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    /// Minor version of Kubernetes that the API server reports.
    pub(super) minor: String,
    /// Platform that was detected from the nodes, such as `gke`; empty if none.
    pub(super) platform: &'static str,
    pub(super) mesh_namespace: String,
    /// Namespaces named on the command line, which are checked like those with the mesh's label.
    pub(super) selected_namespaces: Vec<String>,
    pub(super) nodes: Vec<Node>,
    pub(super) namespaces: Vec<Namespace>,
    pub(super) deployments: Vec<Deployment>,
    pub(super) daemon_sets: Vec<DaemonSet>,
    /// Pods in the mesh's own namespace.
    pub(super) mesh_pods: Vec<Pod>,
    pub(super) crds: Vec<CustomResourceDefinition>,
    pub(super) network_policies: Vec<NetworkPolicy>,
    pub(super) quotas: Vec<ResourceQuota>,
    pub(super) cilium_config: Option<ConfigMap>,
    pub(super) inventory: Option<Inventory>,
    pub(super) rules: Option<MembershipRules>,
    /// Objects of Istio's and the Gateway API's kinds, and the objects that they refer to.
    pub(super) mesh: istio::Mesh,
}

impl Snapshot {
    /// Returns the namespaces that have the mesh's label or are named on the command line.
    pub(super) fn mesh_namespaces(&self) -> Vec<&str> {
        let names = self.namespaces.iter().filter(|namespace| {
            let labelled =
                label(*namespace, remove::DATAPLANE_MODE_LABEL) == Some(remove::AMBIENT_MODE);
            labelled
                || self
                    .selected_namespaces
                    .iter()
                    .any(|requested| requested == name(*namespace))
        });
        names.map(name).collect()
    }
}
