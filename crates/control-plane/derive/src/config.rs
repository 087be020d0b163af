//! Settings of the whole mesh, as the command line and the chart give them.

use ambit_k8s_api::{enablement::Enablement, revisions};
use ambit_model::{ArcStr, PathNormalization};
use ipnet::IpNet;

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
