//! From Kubernetes objects to the records of the mesh, and to the conditions that should stand on objects.
//!
//! Pure and incremental: [`Index`] is fed with objects, keeps the parsed input of each, and returns the changed records
//! on [`Index::flush`]. Work follows the change, not the size of the mesh. An object that cannot be used is refused as
//! a whole, with a [`Problem`] that names the field; its last good version stays in force and nothing else is touched.
//!
//! [`MeshView`] has the objects and the graph of their references; records and conditions are rendered from it alone, so
//! that rendering cannot mark, report or publish. [`Index`] has the view with these.
//!
//! Code for one kind of object is in its file in `index/kinds`, which implements the traits of `index/kind.rs`. Of
//! objects' status only input is read: the state of pods and nodes, and addresses of ServiceEntries. Of conditions that
//! this control plane writes only that of waypoints that have been ready is read here.
#![forbid(unsafe_code)]

pub mod condition;
mod index;
mod pod_directory;
pub mod problem;

use std::sync::Arc;

use ambit_k8s_api::{enablement::Enablement, revisions};
use ambit_model::{
    ArcStr, Authorization, IsWaypointRecord, NamespacedHostname, PathNormalization, PolicyKey,
    WaypointRecord, WaypointRecordKey, Workload, WorkloadUid,
};
use ipnet::IpNet;

pub use index::{
    AcceptedTrustDomains, CONTROLLER, Extent, Followed, Index, KeyForm, KeySource, KeyState,
    KindVisitor, MeshView, RegisteredPort, RegisteredService, ServiceRecord, conditions,
    is_attached, parts, visit_kinds,
};
pub use pod_directory::{PodDirectory, PodEntry, PodFacts};
pub use problem::{FieldError, Problem, Severity};

/// Settings of the whole mesh.
#[derive(Clone, Debug)]
pub struct MeshConfig {
    /// Name of this cluster, first part of workload uids.
    pub cluster_id: ArcStr,
    /// Trust domain of every identity.
    pub trust_domain: ArcStr,
    /// Domain of Kubernetes services.
    pub cluster_domain: ArcStr,
    /// Namespace whose policies concern the whole mesh.
    pub root_namespace: ArcStr,
    /// Whether `istio.io/dry-run` policies are sent. Node proxies that do not know the flag enforce
    /// them, so they are left out otherwise.
    pub dry_run_policies: bool,
    /// Labels that attach pods and services to waypoints.
    pub waypoint_attachment: WaypointAttachment,
    /// Callers that are routed through the waypoints of workloads.
    pub workload_waypoints: WorkloadWaypoints,
    /// Treatment of connections whose waypoint cannot be found.
    pub waypoint_missing: WaypointMissing,
    /// When a waypoint begins to bind what names it.
    pub waypoint_binding: WaypointBinding,
    /// Whether node proxies refuse connections to addresses that nothing in the mesh has.
    pub registry_only: bool,
    /// How waypoints normalize paths.
    pub path_normalization: PathNormalization,
    /// How many proxies in front of the mesh add to `x-forwarded-for` and are trusted.
    pub trusted_proxies: u32,
    /// Whether routes need a grant for backends in other namespaces.
    pub reference_grants: ReferenceGrants,
    /// Requests to which objects attached to services apply.
    pub service_policy_scope: ServicePolicyScope,
    /// Whether Secrets with credentials for the modules of plugins are followed.
    pub image_pull_secrets: bool,
    /// Addresses that waypoints call for what objects name, although they are of a kind that is not called.
    pub allowed_addresses: Vec<IpNet>,
    /// Revision of this control plane, which reads the MeshConfig of that revision. It knows those of other revisions by
    /// their Services, and serves their waypoints, too.
    pub revision: ArcStr,
    /// Which pods the agents capture: node proxies get the certificates of no others.
    pub enablement: Enablement,
}

/// Requests to which objects attached to a Service or ServiceEntry apply (policies, tokens, limits, plugins).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServicePolicyScope {
    /// Requests to the service, and to its pods by their own addresses.
    #[default]
    Pods,
    /// Requests to the service alone, as in Istio.
    Istio,
}

/// Whether routes need a `ReferenceGrant` for backends in other namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReferenceGrants {
    /// References need a grant, as the Gateway API has it.
    #[default]
    Required,
    /// References need no grant, as in Istio.
    Ignored,
}

/// Labels that attach pods and services to waypoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaypointAttachment {
    /// Labels, and where there are none the waypoints themselves: each takes its service account or its
    /// namespace.
    #[default]
    Seed,
    /// Labels only, as in Istio.
    Labels,
}

/// Callers that are routed through the waypoints of workloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkloadWaypoints {
    /// All callers, by any address.
    #[default]
    Enforced,
    /// Captured callers that dial the workload's own address, as in Istio. With [`WaypointAttachment::Labels`] alone.
    Istio,
}

/// Treatment of connections whose waypoint cannot be found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaypointMissing {
    /// Connections are refused.
    #[default]
    Refuse,
    /// Connections pass without a waypoint, as in Istio.
    Allow,
}

/// When a waypoint begins to bind what names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaypointBinding {
    /// At once, as in Istio: until it is ready, connections are refused.
    #[default]
    Strict,
    /// When it has been ready once, or policies are attached to it or to what it is to serve.
    Ready,
}

impl Default for MeshConfig {
    fn default() -> Self {
        Self {
            cluster_id: "Kubernetes".into(),
            trust_domain: ambit_model::DEFAULT_TRUST_DOMAIN.into(),
            cluster_domain: "cluster.local".into(),
            root_namespace: "istio-system".into(),
            dry_run_policies: false,
            waypoint_attachment: WaypointAttachment::default(),
            workload_waypoints: WorkloadWaypoints::default(),
            waypoint_missing: WaypointMissing::default(),
            waypoint_binding: WaypointBinding::default(),
            registry_only: false,
            path_normalization: PathNormalization::default(),
            trusted_proxies: 0,
            reference_grants: ReferenceGrants::default(),
            service_policy_scope: ServicePolicyScope::default(),
            image_pull_secrets: false,
            allowed_addresses: Vec::new(),
            revision: revisions::DEFAULT.into(),
            enablement: Enablement::usual([], "istio-system"),
        }
    }
}

/// Records that changed, by name; `None` is one that is gone.
pub type Changed<N, R> = Vec<(N, Option<Arc<R>>)>;

/// The records that changed; `None` is a record that is gone. Sorted by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delta {
    /// Records of workloads.
    pub workloads: Changed<WorkloadUid, Workload>,
    /// Records of services.
    pub services: Changed<NamespacedHostname, ServiceRecord>,
    /// Policies of layer 4.
    pub policies: Changed<PolicyKey, Authorization>,
    /// Records of waypoints.
    pub waypoint_records: Changed<WaypointRecordKey, WaypointRecord>,
}

impl Delta {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn sort(&mut self) {
        self.workloads.sort_by(|a, b| a.0.cmp(&b.0));
        self.services.sort_by(|a, b| a.0.cmp(&b.0));
        self.policies.sort_by(|a, b| a.0.cmp(&b.0));
        self.waypoint_records.sort_by(|a, b| a.0.cmp(&b.0));
    }

    /// How many records changed.
    pub fn len(&self) -> usize {
        self.workloads.len()
            + self.services.len()
            + self.policies.len()
            + self.waypoint_records.len()
    }

    /// Changed records of waypoints of one type.
    pub fn records_of<R: IsWaypointRecord>(
        &self,
    ) -> impl Iterator<Item = (&WaypointRecordKey, Option<&R>)> {
        let all = self.waypoint_records.iter();
        let of_type = all.filter(|(key, _)| key.record_type == R::TYPE);
        of_type.map(|(key, record)| (key, record.as_deref().and_then(R::of)))
    }
}

/// Labels of an object.
pub type Labels = std::collections::BTreeMap<String, String>;

/// Whether `labels` has every pair of `selector`.
pub fn selects(selector: &Labels, labels: &Labels) -> bool {
    selector
        .iter()
        .all(|(name, value)| labels.get(name) == Some(value))
}

#[cfg(test)]
mod tests;
