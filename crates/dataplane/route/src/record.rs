//! Compact workload record: the workload's own fields are in a small allocation, all others are shared with similar
//! workloads.
//!
//! Pods of one Deployment differ in little more than name, address and node, so everything else is one
//! [`WorkloadTemplate`] for all of them, and node with locality one [`WorkloadLocation`] for all pods of a node.

use std::{net::IpAddr, slice, sync::Arc};

use ambit_model::{
    AppTunnel, ArcStr, EndpointWaypoint, GatewayAddress, Identity, Locality, NamespacedHostname,
    NetworkMode, Protocol, Workload, WorkloadKind, WorkloadStatus,
};

/// Workload in the table; cheap to clone. Later updates of the table do not change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadRef(Arc<WorkloadRecord>);

#[derive(Debug, PartialEq, Eq)]
struct WorkloadRecord {
    uid: ArcStr,
    /// Name of the workload; `None` if it is the last path segment of the uid, as for pods.
    name: Option<ArcStr>,
    template: Arc<WorkloadTemplate>,
    location: Arc<WorkloadLocation>,
    ips: WorkloadIps,
    status: WorkloadStatus,
}

/// Addresses of a workload. Most workloads have exactly one, which needs no allocation of its own.
#[derive(Debug, PartialEq, Eq)]
enum WorkloadIps {
    One(IpAddr),
    Many(Box<[IpAddr]>),
}

/// Fields that the workloads of one owner (such as a Deployment) share.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct WorkloadTemplate {
    pub(crate) namespace: ArcStr,
    pub(crate) network: ArcStr,
    pub(crate) trust_domain: ArcStr,
    pub(crate) service_account: ArcStr,
    pub(crate) cluster_id: ArcStr,
    pub(crate) workload_name: ArcStr,
    pub(crate) canonical_name: ArcStr,
    pub(crate) canonical_revision: ArcStr,
    pub(crate) hostname: ArcStr,
    pub(crate) authorization_policies: Box<[ArcStr]>,
    pub(crate) services: Box<[ServiceMembership]>,
    pub(crate) waypoint: Option<Box<GatewayAddress>>,
    pub(crate) network_gateway: Option<Box<GatewayAddress>>,
    pub(crate) endpoint_waypoint: Option<Box<EndpointWaypoint>>,
    pub(crate) capacity: u32,
    pub(crate) application_tunnel: Option<AppTunnel>,
    pub(crate) workload_type: WorkloadKind,
    pub(crate) protocol: Protocol,
    pub(crate) network_mode: NetworkMode,
    pub(crate) native_tunnel: bool,
}

/// Membership of a workload in a service, with the workload's own target ports (sorted by service port).
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct ServiceMembership {
    pub(crate) service: NamespacedHostname,
    pub(crate) ports: Box<[(u16, u16)]>,
}

impl ServiceMembership {
    /// Returns the workload's own target port for a service port.
    pub(crate) fn target_port(&self, service_port: u16) -> Option<u16> {
        let index = self
            .ports
            .binary_search_by_key(&service_port, |(port, _)| *port)
            .ok()?;
        self.ports.get(index).map(|(_, target)| *target)
    }
}

/// Node and locality that the workloads of a node share.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct WorkloadLocation {
    pub(crate) node: ArcStr,
    pub(crate) locality: Locality,
}

impl WorkloadRef {
    /// Builds a record from a workload and its shared parts.
    pub(crate) fn new(
        workload: &Workload,
        template: Arc<WorkloadTemplate>,
        location: Arc<WorkloadLocation>,
    ) -> Self {
        let in_uid = last_segment(&workload.uid) == workload.name.as_str();
        let ips = match workload.workload_ips.as_slice() {
            [one] => WorkloadIps::One(*one),
            many => WorkloadIps::Many(many.into()),
        };
        Self(Arc::new(WorkloadRecord {
            uid: workload.uid.clone(),
            name: (!in_uid).then(|| workload.name.clone()),
            template,
            location,
            ips,
            status: workload.status,
        }))
    }

    pub(crate) fn template(&self) -> &Arc<WorkloadTemplate> {
        &self.0.template
    }

    pub(crate) fn location(&self) -> &Arc<WorkloadLocation> {
        &self.0.location
    }

    /// Returns the workload's uid, which is its xDS resource name.
    pub fn uid(&self) -> &ArcStr {
        &self.0.uid
    }

    /// Returns the name of the pod or WorkloadEntry.
    pub fn name(&self) -> &str {
        self.0
            .name
            .as_deref()
            .unwrap_or_else(|| last_segment(&self.0.uid))
    }

    /// Kubernetes namespace of the workload.
    pub fn namespace(&self) -> &ArcStr {
        &self.0.template.namespace
    }

    /// Service account of the workload.
    pub fn service_account(&self) -> &ArcStr {
        &self.0.template.service_account
    }

    /// Trust domain of the workload's identity.
    pub fn trust_domain(&self) -> &ArcStr {
        &self.0.template.trust_domain
    }

    /// Returns the SPIFFE identity of the workload.
    pub fn identity(&self) -> Identity {
        let WorkloadTemplate {
            trust_domain,
            namespace,
            service_account,
            ..
        } = &*self.0.template;
        Identity {
            trust_domain: trust_domain.clone(),
            namespace: namespace.clone(),
            service_account: service_account.clone(),
        }
    }

    /// Whether the workload has this identity; compares without allocating.
    pub fn has_identity(&self, identity: &Identity) -> bool {
        let template = &*self.0.template;
        template.service_account == identity.service_account
            && template.namespace == identity.namespace
            && template.trust_domain == identity.trust_domain
    }

    /// Returns the addresses of the workload, in canonical form.
    pub fn ips(&self) -> &[IpAddr] {
        match &self.0.ips {
            WorkloadIps::One(ip) => slice::from_ref(ip),
            WorkloadIps::Many(ips) => ips,
        }
    }

    /// Returns the network to which the workload's addresses belong.
    pub fn network(&self) -> &ArcStr {
        &self.0.template.network
    }

    /// Returns the protocol in which the workload accepts connections: plain TCP or HBONE.
    pub fn protocol(&self) -> Protocol {
        self.0.template.protocol
    }

    /// Returns the network mode: whether the workload has addresses of its own.
    pub fn network_mode(&self) -> NetworkMode {
        self.0.template.network_mode
    }

    /// Whether the application terminates HBONE itself.
    pub fn native_tunnel(&self) -> bool {
        self.0.template.native_tunnel
    }

    /// Returns the health that the control plane reports.
    pub fn status(&self) -> WorkloadStatus {
        self.0.status
    }

    /// Returns the node of the workload.
    pub fn node(&self) -> &ArcStr {
        &self.0.location.node
    }

    /// Returns the locality of the workload.
    pub fn locality(&self) -> &Locality {
        &self.0.location.locality
    }

    /// Returns the cluster of the workload.
    pub fn cluster_id(&self) -> &ArcStr {
        &self.0.template.cluster_id
    }

    /// Name of the workload's owner, such as a Deployment.
    pub fn workload_name(&self) -> &ArcStr {
        &self.0.template.workload_name
    }

    /// Kind of the workload's owner.
    pub fn workload_type(&self) -> WorkloadKind {
        self.0.template.workload_type
    }

    /// Canonical service name, for telemetry.
    pub fn canonical_name(&self) -> &ArcStr {
        &self.0.template.canonical_name
    }

    /// Canonical revision, for telemetry.
    pub fn canonical_revision(&self) -> &ArcStr {
        &self.0.template.canonical_revision
    }

    /// Returns the names of policies that select the workload, as its record lists them.
    pub fn authorization_policies(&self) -> &[ArcStr] {
        &self.0.template.authorization_policies
    }

    /// Iterates over the services of which the workload is an endpoint.
    pub fn services(&self) -> impl Iterator<Item = &NamespacedHostname> {
        self.0
            .template
            .services
            .iter()
            .map(|membership| &membership.service)
    }

    /// Iterates over the service ports that forward to a port of the workload.
    pub fn service_ports(&self, target: u16) -> impl Iterator<Item = (&NamespacedHostname, u16)> {
        let all = self.0.template.services.iter();
        all.flat_map(move |membership| {
            let ports = membership.ports.iter();
            let leading = ports.filter(move |(_, to)| *to == target);
            leading.map(|(port, _)| (&membership.service, *port))
        })
    }

    /// Whether the workload is a pod.
    pub fn is_pod(&self) -> bool {
        self.uid().contains("//Pod/")
    }

    /// Whether another version of the workload's record has the same services and addresses.
    pub fn has_services_of(&self, workload: &Workload) -> bool {
        let Workload {
            services,
            workload_ips,
            ..
        } = self.to_model();
        services == workload.services && workload_ips == workload.workload_ips
    }

    /// Returns the workload's membership in a service, with its own target ports.
    pub(crate) fn membership(&self, service: &NamespacedHostname) -> Option<&ServiceMembership> {
        self.0
            .template
            .services
            .iter()
            .find(|membership| membership.service == *service)
    }

    /// Whether the workload's own record names `waypoint` as its waypoint.
    pub fn names_waypoint(&self, waypoint: &GatewayAddress) -> bool {
        let template = self.template();
        let attached = template.endpoint_waypoint.as_deref();
        let attached = attached.map(|attached| &attached.waypoint);
        let all = template.waypoint.as_deref().into_iter().chain(attached);
        all.into_iter()
            .any(|gateway| gateway.destination == waypoint.destination)
    }

    /// Converts the compact record to the model's workload.
    pub fn to_model(&self) -> Workload {
        let WorkloadRecord {
            uid,
            name,
            template,
            location,
            status,
            ..
        } = &*self.0;
        Workload {
            uid: uid.clone(),
            name: name.clone().unwrap_or_else(|| last_segment(uid).into()),
            namespace: template.namespace.clone(),
            workload_ips: self.ips().to_vec(),
            network: template.network.clone(),
            protocol: template.protocol,
            network_mode: template.network_mode,
            native_tunnel: template.native_tunnel,
            trust_domain: template.trust_domain.clone(),
            service_account: template.service_account.clone(),
            waypoint: template.waypoint.as_deref().cloned(),
            network_gateway: template.network_gateway.as_deref().cloned(),
            workload_name: template.workload_name.clone(),
            workload_type: template.workload_type,
            canonical_name: template.canonical_name.clone(),
            canonical_revision: template.canonical_revision.clone(),
            hostname: template.hostname.clone(),
            node: location.node.clone(),
            authorization_policies: template.authorization_policies.to_vec(),
            status: *status,
            cluster_id: template.cluster_id.clone(),
            locality: location.locality.clone(),
            services: template
                .services
                .iter()
                .map(|membership| {
                    (
                        membership.service.clone(),
                        membership.ports.iter().copied().collect(),
                    )
                })
                .collect(),
            capacity: template.capacity,
            application_tunnel: template.application_tunnel,
            endpoint_waypoint: template.endpoint_waypoint.as_deref().cloned(),
        }
    }
}

fn last_segment(uid: &str) -> &str {
    uid.rsplit_once('/').map_or(uid, |(_, last)| last)
}
