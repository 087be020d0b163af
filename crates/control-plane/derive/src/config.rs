//! Settings of the whole mesh, from the control plane's command line, which the chart sets.

use ambit_k8s_api::{enablement::Enablement, revisions};
use ambit_model::{ArcStr, PathNormalization};
use ipnet::IpNet;

/// Settings of the whole mesh.
#[derive(Clone, Debug)]
pub struct MeshConfig {
    /// Name of this cluster, which is the first part of workload uids.
    pub cluster_id: ArcStr,
    /// Trust domain of all identities of the mesh.
    pub trust_domain: ArcStr,
    /// DNS domain of Kubernetes services, such as `cluster.local`.
    pub cluster_domain: ArcStr,
    /// Namespace whose policies apply to the whole mesh.
    pub root_namespace: ArcStr,
    /// Whether policies with `istio.io/dry-run` are sent to node proxies. Node proxies that do not know the flag would
    /// enforce them, so they are left out by default.
    pub dry_run_policies: bool,
    /// Whether pods and services are attached to waypoints by labels alone.
    pub waypoint_attachment: WaypointAttachment,
    /// Clients whose connections to workloads go through the workloads' waypoints.
    pub workload_waypoints: WorkloadWaypoints,
    /// Treatment of connections to objects whose waypoint cannot be used.
    pub waypoint_missing: WaypointMissing,
    /// Time from which a waypoint binds the objects whose labels name it.
    pub waypoint_binding: WaypointBinding,
    /// Whether node proxies refuse connections to addresses that are not in the mesh's registry (`REGISTRY_ONLY`).
    pub registry_only: bool,
    /// Path normalization in waypoints.
    pub path_normalization: PathNormalization,
    /// Number of trusted proxies in front of the mesh that add to `x-forwarded-for`.
    pub trusted_proxies: u32,
    /// Whether routes need a `ReferenceGrant` for backends in other namespaces.
    pub reference_grants: ReferenceGrants,
    /// Requests that a policy attached to a service applies to: requests to the service alone, or also to its pods.
    pub service_policy_scope: ServicePolicyScope,
    /// Whether the control plane reads Secrets with registry credentials for the images of Wasm plugins.
    pub image_pull_secrets: bool,
    /// Addresses that waypoints may call on behalf of objects although their kind (such as link-local) is otherwise
    /// excluded.
    pub allowed_addresses: Vec<IpNet>,
    /// Revision of this control plane, whose MeshConfig it reads. It finds control planes of other revisions by their
    /// Services, and also serves their waypoints.
    pub revision: ArcStr,
    /// Rules by which agents capture pods: node proxies get certificates only for captured pods.
    pub enablement: Enablement,
}

/// Requests that policies attached to a Service or ServiceEntry apply to (AuthorizationPolicies,
/// RequestAuthentications, RateLimits, WasmPlugins).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServicePolicyScope {
    /// Policies of a service apply to requests to the service, and to requests to its pods' own addresses.
    #[default]
    ServiceAndPods,
    /// Policies of a service apply to requests to the service only, as in Istio.
    ServiceOnly,
}

/// Whether routes need a `ReferenceGrant` for backends in other namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReferenceGrants {
    /// References to other namespaces need a grant, as in the Gateway API.
    #[default]
    Required,
    /// References to other namespaces need no grant, as in Istio.
    Ignored,
}

/// How pods and services are attached to waypoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaypointAttachment {
    /// Labels attach objects; without labels, the waypoints of their namespace do: the waypoint for the pod's service
    /// account, else the waypoint for the namespace.
    #[default]
    LabelsAndGateways,
    /// Labels alone attach pods and services, as in Istio.
    LabelsOnly,
}

/// Clients whose connections to workloads go through the workloads' waypoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkloadWaypoints {
    /// All clients connect through the workload's waypoint, whichever address they connect to.
    #[default]
    AllClients,
    /// Captured clients that connect to the workload's own address go through its waypoint, as in
    /// Istio. Only with [`WaypointAttachment::LabelsOnly`].
    CapturedClients,
}

/// Treatment of connections to objects whose waypoint is missing or cannot be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaypointMissing {
    /// Connections to an object without a usable waypoint are refused.
    #[default]
    RefuseConnections,
    /// Connections bypass the waypoint, as in Istio.
    BypassWaypoint,
}

/// Time from which a waypoint binds the objects whose labels name it: their connections go through it or are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaypointBinding {
    /// A waypoint binds objects immediately, as in Istio: connections are refused until the waypoint is ready.
    #[default]
    Strict,
    /// A waypoint binds objects once it has been ready, or as soon as policies are attached to it or to objects that it
    /// will serve.
    WhenReady,
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
            revision: revisions::DEFAULT_REVISION.into(),
            enablement: Enablement::with_default_selectors([], "istio-system"),
        }
    }
}
