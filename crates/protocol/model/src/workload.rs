//! A workload: one endpoint that can be a source or a destination, usually a pod.

use std::{collections::BTreeMap, fmt, net::IpAddr};

use arcstr::ArcStr;

use crate::{
    DEFAULT_TRUST_DOMAIN, GatewayAddress, Identity, NamespacedHostname, PortMap, WaypointRule,
    WorkloadUid,
};

/// How a workload takes connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Plain TCP, without a tunnel.
    #[default]
    Tcp,
    /// HTTP/2 CONNECT over mTLS on port 15008.
    Hbone,
}

/// Whether the workload's addresses are its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NetworkMode {
    /// Its own addresses.
    #[default]
    Standard,
    /// Addresses of its node, shared with others: never looked up by address.
    HostNetwork,
}

/// Health as the control plane reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WorkloadStatus {
    /// Workload that receives traffic.
    #[default]
    Healthy,
    /// Not ready, or going away.
    Unhealthy,
}

/// The kind of a workload's owner; for telemetry only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WorkloadKind {
    /// Pods of a Deployment.
    #[default]
    Deployment,
    /// Pods of a CronJob.
    Cronjob,
    /// A bare pod (what Istio's control plane always sends).
    Pod,
    /// Pods of a Job.
    Job,
}

impl WorkloadKind {
    /// The lower-case word that baggage uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deployment => "deployment",
            Self::Cronjob => "cronjob",
            Self::Pod => "pod",
            Self::Job => "job",
        }
    }
}

/// How the proxy passes a tunnelled connection to the application itself (sandwiched waypoints).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AppTunnel {
    /// The header before the connection's bytes.
    pub protocol: AppTunnelProtocol,
    /// Overrides the target port.
    pub port: Option<u16>,
}

/// Protocol of an [`AppTunnel`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AppTunnelProtocol {
    /// No protocol before the application's.
    #[default]
    None,
    /// A PROXY protocol v2 header with the client's identity in TLV 0xD0.
    Proxy,
}

/// The location of a workload; empty parts are unknown.
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
    /// True when nothing is known.
    pub fn is_empty(&self) -> bool {
        self.region.is_empty() && self.zone.is_empty() && self.subzone.is_empty()
    }
}

/// A pod as the enrolment contract (ZDS) names it.
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

/// One endpoint of the mesh. Fields as WDS defines them (`istio.workload.Workload`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The xDS resource name.
    pub uid: WorkloadUid,
    /// Pod (or entry) name.
    pub name: ArcStr,
    /// Namespace of the workload.
    pub namespace: ArcStr,
    /// Its addresses, canonical; may be empty (see `hostname` and `network_gateway`).
    pub workload_ips: Vec<IpAddr>,
    /// Network of the addresses.
    pub network: ArcStr,
    /// How it takes connections.
    pub protocol: Protocol,
    /// Whether the addresses are its own.
    pub network_mode: NetworkMode,
    /// The application terminates HBONE by itself.
    pub native_tunnel: bool,
    /// Trust domain of its identity.
    pub trust_domain: ArcStr,
    /// Service account of its identity.
    pub service_account: ArcStr,
    /// Waypoint for traffic addressed to the workload itself.
    pub waypoint: Option<GatewayAddress>,
    /// Gateway through which another network reaches it.
    pub network_gateway: Option<GatewayAddress>,
    /// Name of the owning Deployment or the like.
    pub workload_name: ArcStr,
    /// Kind of the owner.
    pub workload_type: WorkloadKind,
    /// Canonical service name, for telemetry.
    pub canonical_name: ArcStr,
    /// Canonical revision, for telemetry.
    pub canonical_revision: ArcStr,
    /// A DNS name to resolve when there are no addresses.
    pub hostname: ArcStr,
    /// Node it runs on.
    pub node: ArcStr,
    /// Names (`namespace/name`) of the selector policies that apply to it.
    pub authorization_policies: Vec<ArcStr>,
    /// Health of the workload.
    pub status: WorkloadStatus,
    /// Cluster it belongs to.
    pub cluster_id: ArcStr,
    /// Where it runs.
    pub locality: Locality,
    /// The services it is an endpoint of, with its own target ports.
    pub services: BTreeMap<NamespacedHostname, PortMap>,
    /// Weight in load balancing; 0 is never picked.
    pub capacity: u32,
    /// How tunnelled connections reach the application.
    pub application_tunnel: Option<AppTunnel>,
    /// The waypoint that serves only this endpoint (Ambit's own extension).
    pub endpoint_waypoint: Option<EndpointWaypoint>,
}

/// The waypoint of one endpoint, attached by namespace or service account rather than by label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndpointWaypoint {
    /// Address of the waypoint.
    pub waypoint: GatewayAddress,
    /// The identities its pods run under.
    pub identities: Vec<Identity>,
    /// The destination sends all traffic that did not come from the waypoint through it.
    pub enforce: bool,
    /// Whether the destination refuses connections that did not come from the waypoint, instead of sending them through
    /// it: a waypoint that does not learn whose connection that is would take it for one of the destination's own.
    pub refuse: bool,
    /// The waypoint serves services too: what was addressed to a service is sent to it with the service as
    /// target, rather than the endpoint.
    pub for_services: bool,
    /// Rules of layer 7 at the waypoint, and for the services of the workload, that could concern a connection. `None`:
    /// the control plane does not send them.
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
    /// The identity in its certificate.
    pub fn identity(&self) -> Identity {
        Identity {
            trust_domain: self.trust_domain.clone(),
            namespace: self.namespace.clone(),
            service_account: self.service_account.clone(),
        }
    }

    /// Whether the trust domain is the default, which is left out on the wire.
    pub fn has_default_trust_domain(&self) -> bool {
        self.trust_domain == DEFAULT_TRUST_DOMAIN
    }
}
