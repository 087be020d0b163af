//! Workloads: sources and destinations of connections, usually pods.

use std::{collections::BTreeMap, fmt, net::IpAddr};

use arcstr::ArcStr;

use crate::{
    DEFAULT_TRUST_DOMAIN, GatewayAddress, Identity, NamespacedHostname, PortMap, WaypointRule,
    WorkloadUid,
};

/// Protocol in which a workload accepts connections from the mesh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Plain TCP, without a tunnel.
    #[default]
    Tcp,
    /// HTTP/2 CONNECT over mTLS on port 15008.
    Hbone,
}

/// Whether the workload has its own addresses or shares those of its node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NetworkMode {
    /// The workload has its own addresses.
    #[default]
    Standard,
    /// The workload shares the node's addresses with other workloads, so that lookups by address skip it.
    HostNetwork,
}

/// Health of a workload as the control plane reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WorkloadStatus {
    /// Workload that receives traffic.
    #[default]
    Healthy,
    /// Workload that is not ready or is terminating.
    Unhealthy,
}

/// Kind of the workload's owner, for telemetry only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WorkloadKind {
    /// Pods of a Deployment.
    #[default]
    Deployment,
    /// Pods of a CronJob.
    Cronjob,
    /// Bare pod (the only value that Istio's control plane sends).
    Pod,
    /// Pods of a Job.
    Job,
}

impl WorkloadKind {
    /// Returns the lower-case name for the baggage header.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deployment => "deployment",
            Self::Cronjob => "cronjob",
            Self::Pod => "pod",
            Self::Job => "job",
        }
    }
}

/// How tunnelled connections are delivered to an application that is itself a proxy (a sandwiched waypoint).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AppTunnel {
    /// Protocol of the header before the connection's own bytes.
    pub protocol: AppTunnelProtocol,
    /// Port that overrides the target port.
    pub port: Option<u16>,
}

/// Protocol of the header that precedes a connection in an [`AppTunnel`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AppTunnelProtocol {
    /// No header precedes the connection's own bytes.
    #[default]
    None,
    /// PROXY protocol v2 header with the client's identity in TLV 0xD0.
    Proxy,
}

/// Topology location of a workload; empty parts are unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Locality {
    /// Region of the cloud.
    pub region: ArcStr,
    /// Zone of the region.
    pub zone: ArcStr,
    /// Subzone of the zone.
    pub subzone: ArcStr,
}

impl Locality {
    /// Whether no part of the locality is known.
    pub fn is_empty(&self) -> bool {
        self.region.is_empty() && self.zone.is_empty() && self.subzone.is_empty()
    }
}

/// Pod identification in the enrolment protocol (ZDS).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodName {
    /// Name of the pod.
    pub name: ArcStr,
    /// Namespace of the pod.
    pub namespace: ArcStr,
    /// Service account of the pod.
    pub service_account: ArcStr,
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Workload of the mesh. Fields follow WDS (`istio.workload.Workload`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// xDS resource name of the workload.
    pub uid: WorkloadUid,
    /// Name of the pod or WorkloadEntry.
    pub name: ArcStr,
    /// Namespace of the workload.
    pub namespace: ArcStr,
    /// Canonical addresses; empty for workloads that have a `hostname` or `network_gateway` instead.
    pub workload_ips: Vec<IpAddr>,
    /// Network of the addresses.
    pub network: ArcStr,
    /// Protocol in which the workload accepts connections.
    pub protocol: Protocol,
    /// Whether the workload has its own network namespace and addresses.
    pub network_mode: NetworkMode,
    /// Whether the application terminates HBONE itself.
    pub native_tunnel: bool,
    /// Trust domain of the workload's identity.
    pub trust_domain: ArcStr,
    /// Service account of the workload's identity.
    pub service_account: ArcStr,
    /// Waypoint for traffic that is addressed to the workload rather than to a service.
    pub waypoint: Option<GatewayAddress>,
    /// Gateway through which other networks reach the workload.
    pub network_gateway: Option<GatewayAddress>,
    /// Name of the owning Deployment or the like.
    pub workload_name: ArcStr,
    /// Kind of the owner.
    pub workload_type: WorkloadKind,
    /// Canonical service name, for telemetry.
    pub canonical_name: ArcStr,
    /// Canonical revision, for telemetry.
    pub canonical_revision: ArcStr,
    /// DNS name to resolve if the workload has no addresses.
    pub hostname: ArcStr,
    /// Node of the workload.
    pub node: ArcStr,
    /// Names (`namespace/name`) of the policies whose selectors match the workload.
    pub authorization_policies: Vec<ArcStr>,
    /// Health of the workload.
    pub status: WorkloadStatus,
    /// Cluster of the workload.
    pub cluster_id: ArcStr,
    /// Topology location of the workload.
    pub locality: Locality,
    /// Services of which the workload is an endpoint, with its target ports.
    pub services: BTreeMap<NamespacedHostname, PortMap>,
    /// Load-balancing weight; zero excludes the workload.
    pub capacity: u32,
    /// Delivery of tunnelled connections to a sandwiched waypoint.
    pub application_tunnel: Option<AppTunnel>,
    /// Waypoint that serves only this endpoint (an extension of Ambit).
    pub endpoint_waypoint: Option<EndpointWaypoint>,
}

/// Waypoint of one endpoint, attached by namespace or service account rather than by a label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndpointWaypoint {
    /// Address of the waypoint.
    pub waypoint: GatewayAddress,
    /// Identities of the waypoint's pods.
    pub identities: Vec<Identity>,
    /// Whether the destination's node proxy redirects connections that bypass the waypoint to the waypoint.
    pub enforce: bool,
    /// Whether the destination's node proxy rejects connections that bypass the waypoint, instead of redirecting them.
    /// For waypoints that ignore the original client's identity and would attribute such connections to the
    /// destination.
    pub refuse: bool,
    /// Whether the waypoint also serves services. If so, connections to a service are sent to the waypoint with the
    /// service as destination, instead of the endpoint.
    pub for_services: bool,
    /// L7 rules of the waypoint and of the workload's services that could apply to a connection. `None` if the control
    /// plane does not send them.
    pub rules: Option<Vec<WaypointRule>>,
}

impl Default for Workload {
    fn default() -> Self {
        let empty = ArcStr::new;
        Self {
            uid: empty(),
            name: empty(),
            namespace: empty(),
            workload_ips: Vec::new(),
            network: empty(),
            protocol: Protocol::default(),
            network_mode: NetworkMode::default(),
            native_tunnel: false,
            trust_domain: arcstr::literal!("cluster.local"),
            service_account: arcstr::literal!("default"),
            waypoint: None,
            network_gateway: None,
            workload_name: empty(),
            workload_type: WorkloadKind::default(),
            canonical_name: empty(),
            canonical_revision: empty(),
            hostname: empty(),
            node: empty(),
            authorization_policies: Vec::new(),
            status: WorkloadStatus::default(),
            cluster_id: arcstr::literal!("Kubernetes"),
            locality: Locality::default(),
            services: BTreeMap::new(),
            capacity: 1,
            application_tunnel: None,
            endpoint_waypoint: None,
        }
    }
}

impl Workload {
    /// Returns the identity in the workload's certificate.
    pub fn identity(&self) -> Identity {
        Identity {
            trust_domain: self.trust_domain.clone(),
            namespace: self.namespace.clone(),
            service_account: self.service_account.clone(),
        }
    }

    /// Whether the workload has the default trust domain, which the wire format omits.
    pub fn has_default_trust_domain(&self) -> bool {
        self.trust_domain == DEFAULT_TRUST_DOMAIN
    }
}
