//! Parsing of Kubernetes Services, each of which becomes a service record under its host name.

use std::{collections::BTreeMap, net::IpAddr};

use ambit_k8s_api::{Service, created, labels, revisions::ControlPlane};
use ambit_model::{AppProtocol, ArcStr, IpFamilies, LbScope, PortMap};
use k8s_openapi::{api::core::v1::ServiceSpec, apimachinery::pkg::util::intstr::IntOrString};

use crate::{
    config::MeshConfig,
    labels::Labels,
    objects::{
        binding::{self, CanaryWaypoint, WaypointSelection},
        pod::PodInput,
        readable::{FetchExtent, FetchedKind, Parsed, Readable},
    },
    problem::{FieldError, Note},
};

impl FetchedKind for Service {
    const FETCH_EXTENT: FetchExtent = FetchExtent::Whole { labels: None };
}

impl Readable for Service {
    type Input = ServiceInput;

    fn read(&self, _: &MeshConfig) -> Result<Parsed<ServiceInput>, FieldError> {
        let (input, notes) = ServiceInput::read(self)?;
        Ok(Parsed::new(input, notes))
    }
}

/// Target port of a service port: a number, or the name of a container port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TargetPort {
    Number(u16),
    Name(String),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServicePort {
    pub(crate) name: String,
    pub(crate) port: u16,
    pub(crate) target_port: TargetPort,
    pub(crate) is_tcp: bool,
    pub(crate) app_protocol: AppProtocol,
}

/// Parsed Kubernetes Service.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServiceInput {
    pub(crate) name: ArcStr,
    pub(crate) namespace: ArcStr,
    pub(crate) vips: Vec<IpAddr>,
    pub(crate) ports: Vec<ServicePort>,
    pub(crate) selector: Option<Labels>,
    pub(crate) traffic_distribution: Option<String>,
    pub(crate) is_node_local: bool,
    pub(crate) publishes_not_ready: bool,
    pub(crate) has_session_affinity: bool,
    pub(crate) ip_families: Option<IpFamilies>,
    pub(crate) created: String,
    /// Waypoint that the service's labels select.
    pub(crate) binding: Option<WaypointSelection>,
    /// Canary waypoint that the service's labels select.
    pub(crate) canary: Option<CanaryWaypoint>,
    /// Whether ingress gateways send requests through the service's waypoint; `None` if the label is unset.
    pub(crate) ingress_use_waypoint: Option<bool>,
    /// Whether a controller created the service for a Gateway (label `gateway.istio.io/managed`).
    pub(crate) is_managed: bool,
    /// Revision and tag in the service's labels, if it is the Service of a control plane of this mesh.
    pub(crate) control_plane: Option<ControlPlane>,
}

impl ServiceInput {
    /// Parses a Service; `None` for `ExternalName`, which is not in the mesh.
    fn read(service: &Service) -> Result<(Option<Self>, Vec<Note>), FieldError> {
        let mut notes = Vec::new();
        let empty = ServiceSpec::default();
        let spec = service.spec.as_ref().unwrap_or(&empty);
        if spec.type_.as_deref() == Some("ExternalName") {
            return Ok((None, notes));
        }
        let annotation = |name: &str| {
            service
                .metadata
                .annotations
                .as_ref()
                .and_then(|all| all.get(name))
        };
        let namespace = service.metadata.namespace.as_deref().unwrap_or("default");
        let own_labels = service.metadata.labels.as_ref();
        let distribution = spec
            .traffic_distribution
            .clone()
            .or_else(|| annotation(labels::TRAFFIC_DISTRIBUTION).cloned());
        if let Some(value) = distribution
            .as_deref()
            .filter(|value| failover_scopes(value).is_none())
        {
            notes.push(Note::new(
                "spec.trafficDistribution",
                format!("{value:?} is not known and has no effect"),
            ));
        }
        Ok((
            Some(Self {
                name: service.metadata.name.as_deref().unwrap_or_default().into(),
                namespace: namespace.into(),
                vips: read_vips(spec)?,
                ports: read_ports(spec)?,
                selector: spec
                    .selector
                    .clone()
                    .filter(|selector| !selector.is_empty()),
                traffic_distribution: distribution,
                is_node_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
                publishes_not_ready: spec.publish_not_ready_addresses.unwrap_or(false),
                has_session_affinity: spec.session_affinity.as_deref() == Some("ClientIP"),
                ip_families: read_families(spec)?,
                created: created(&service.metadata),
                binding: own_labels.and_then(|all| WaypointSelection::from_labels(all, namespace)),
                canary: CanaryWaypoint::from_metadata(&service.metadata, namespace),
                ingress_use_waypoint: binding::ingress_use_waypoint(&service.metadata),
                control_plane: ControlPlane::from_labels(own_labels),
                is_managed: own_labels.is_some_and(|all| all.contains_key(labels::GATEWAY_MANAGED)),
            }),
            notes,
        ))
    }

    pub(crate) fn hostname(&self, domain: &str) -> ArcStr {
        arcstr::format!("{}.{}.svc.{domain}", self.name, self.namespace)
    }

    /// Maps service ports to target ports in one pod; ports whose name the pod does not have are left out.
    pub(crate) fn target_ports_in(&self, pod: &PodInput) -> PortMap {
        let target = |port: &ServicePort| match &port.target_port {
            TargetPort::Number(number) => Some(*number),
            TargetPort::Name(name) => pod.ports.get(name).copied(),
        };
        self.published_ports()
            .filter_map(|port| Some((port.port, target(port)?)))
            .collect()
    }

    /// Maps service ports to target ports of an endpoint that is not a pod: a named target port that `by_name` lacks is
    /// the service port itself.
    pub(crate) fn target_ports_by_name(&self, by_name: &BTreeMap<String, u16>) -> PortMap {
        let target = |port: &ServicePort| match &port.target_port {
            TargetPort::Number(number) => by_name.get(&port.name).copied().unwrap_or(*number),
            TargetPort::Name(name) => by_name
                .get(name)
                .or_else(|| by_name.get(&port.name))
                .copied()
                .unwrap_or(port.port),
        };
        self.published_ports()
            .map(|port| (port.port, target(port)))
            .collect()
    }

    /// Returns the ports in the order of their records. Receivers use the last record of a port number, which must be
    /// the TCP one: a later port of another protocol with the same number is left out.
    pub(crate) fn published_ports(&self) -> impl Iterator<Item = &ServicePort> {
        self.ports.iter().enumerate().filter_map(|(index, port)| {
            let mut earlier = self.ports.iter().take(index);
            let behind_tcp = earlier.any(|one| one.is_tcp && one.port == port.port);
            (port.is_tcp || !behind_tcp).then_some(port)
        })
    }
}

/// Returns the failover scopes of a traffic distribution, such as `PreferClose`; `None` if it is unknown.
pub(crate) fn failover_scopes(distribution: &str) -> Option<Vec<LbScope>> {
    use LbScope::{Network, Node, Region, Subzone, Zone};
    match distribution.to_ascii_lowercase().as_str() {
        "preferclose" | "prefersamezone" => Some(vec![Network, Region, Zone]),
        "prefersamenode" => Some(vec![Network, Region, Zone, Subzone, Node]),
        _ => None,
    }
}

fn read_vips(spec: &ServiceSpec) -> Result<Vec<IpAddr>, FieldError> {
    let several: Vec<_> = spec
        .cluster_ips
        .iter()
        .flatten()
        .enumerate()
        .map(|(index, ip)| (format!("spec.clusterIPs[{index}]"), ip.as_str()))
        .collect();
    let texts = if several.is_empty() {
        spec.cluster_ip
            .as_deref()
            .map(|ip| ("spec.clusterIP".to_owned(), ip))
            .into_iter()
            .collect()
    } else {
        several
    };
    let texts = texts
        .into_iter()
        .filter(|(_, ip)| !ip.is_empty() && *ip != "None");
    texts
        .map(|(field, text)| {
            text.parse::<IpAddr>()
                .map(|ip| ip.to_canonical())
                .map_err(|_| FieldError::new(field, format!("{text:?} is not an IP address")))
        })
        .collect()
}

fn read_ports(spec: &ServiceSpec) -> Result<Vec<ServicePort>, FieldError> {
    let mut ports: Vec<ServicePort> = Vec::new();
    for (index, port) in spec.ports.iter().flatten().enumerate() {
        let field = |name: &str| format!("spec.ports[{index}].{name}");
        let number =
            port_number(port.port).map_err(|message| FieldError::new(field("port"), message))?;
        let target = match &port.target_port {
            None => TargetPort::Number(number),
            Some(IntOrString::Int(0)) => TargetPort::Number(number),
            Some(IntOrString::Int(target)) => TargetPort::Number(
                port_number(*target)
                    .map_err(|message| FieldError::new(field("targetPort"), message))?,
            ),
            Some(IntOrString::String(name)) => match name.parse::<i32>() {
                Ok(target) => TargetPort::Number(
                    port_number(target)
                        .map_err(|message| FieldError::new(field("targetPort"), message))?,
                ),
                Err(_) if name.is_empty() => TargetPort::Number(number),
                Err(_) => TargetPort::Name(name.clone()),
            },
        };
        let name = port.name.clone().unwrap_or_default();
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let is_tcp = protocol == "TCP";
        if ports
            .iter()
            .any(|other| other.port == number && other.is_tcp == is_tcp && is_tcp)
        {
            return Err(FieldError::new(
                field("port"),
                format!("{number} is given twice"),
            ));
        }
        ports.push(ServicePort {
            app_protocol: if is_tcp {
                app_protocol(port.app_protocol.as_deref(), &name, number)
            } else {
                AppProtocol::Unknown
            },
            name,
            port: number,
            target_port: target,
            is_tcp,
        });
    }
    Ok(ports)
}

fn port_number(port: i32) -> Result<u16, String> {
    u16::try_from(port)
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| format!("{port} is not a port, 1 to 65535"))
}

fn read_families(spec: &ServiceSpec) -> Result<Option<IpFamilies>, FieldError> {
    let families: Vec<_> = spec
        .ip_families
        .iter()
        .flatten()
        .map(String::as_str)
        .collect();
    match families.as_slice() {
        [] => Ok(None),
        ["IPv4"] => Ok(Some(IpFamilies::Ipv4)),
        ["IPv6"] => Ok(Some(IpFamilies::Ipv6)),
        ["IPv4", "IPv6"] | ["IPv6", "IPv4"] => Ok(Some(IpFamilies::Dual)),
        _ => Err(FieldError::new(
            "spec.ipFamilies",
            "must be IPv4, IPv6 or both",
        )),
    }
}

/// Returns the application protocol of a port: by its `appProtocol`, else by the prefix of its name, else by its
/// number.
pub(crate) fn app_protocol(declared: Option<&str>, name: &str, number: u16) -> AppProtocol {
    let by_word = |word: &str| match word {
        "http" => Some(AppProtocol::Http11),
        "http2" => Some(AppProtocol::Http2),
        "grpc" | "grpc-web" => Some(AppProtocol::Grpc),
        "https" | "tls" => Some(AppProtocol::Tls),
        "tcp" | "mongo" | "redis" | "mysql" => Some(AppProtocol::Tcp),
        _ => None,
    };
    if let Some(declared) = declared {
        let declared = declared.to_ascii_lowercase();
        return match declared.as_str() {
            "kubernetes.io/h2c" => AppProtocol::Http2,
            "kubernetes.io/ws" => AppProtocol::Http11,
            "kubernetes.io/wss" => AppProtocol::Tls,
            other => by_word(other).unwrap_or(AppProtocol::Unknown),
        };
    }
    let name = name.to_ascii_lowercase();
    let word = if name == "grpc-web" || name.starts_with("grpc-web-") {
        "grpc-web"
    } else {
        name.split('-').next().unwrap_or_default()
    };
    by_word(word).unwrap_or(match number {
        25 | 53 | 3306 | 27017 => AppProtocol::Tcp,
        _ => AppProtocol::Unknown,
    })
}
