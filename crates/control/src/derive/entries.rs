//! What the mesh reads from a ServiceEntry and a WorkloadEntry.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ambit_k8s_api::{
    ServiceEntry, WorkloadEntry, is_dns_name,
    istio::{Resolution, WorkloadEntrySpec},
    labels,
};
use ambit_model as model;
use ambit_model::{ArcStr, HealthPolicy, LbMode, LoadBalancing, Locality, PortMap};
use ipnet::IpNet;

use super::{
    Labels,
    pods::PodInput,
    services::{ServiceRecord, app_protocol, created, load_balancing},
};
use crate::problems::FieldError;

/// Where an entry can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Ip(IpAddr),
    Host(ArcStr),
}

/// One workload outside Kubernetes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EntryInput {
    pub(crate) address: Address,
    /// The address as written, part of the uid.
    pub(crate) text: String,
    pub(crate) ports: BTreeMap<String, u16>,
    pub(crate) labels: Labels,
    pub(crate) network: Option<ArcStr>,
    pub(crate) locality: Locality,
    pub(crate) capacity: u32,
    pub(crate) service_account: ArcStr,
    pub(crate) native_tunnel: bool,
}

impl EntryInput {
    fn read(
        spec: &WorkloadEntrySpec,
        more_labels: Option<&Labels>,
        at: &str,
    ) -> Result<Self, FieldError> {
        let field = |name: &str| format!("{at}.{name}");
        let address = match spec.address.parse::<IpAddr>() {
            Ok(ip) => Address::Ip(ip.to_canonical()),
            Err(_) if is_dns_name(&spec.address.to_ascii_lowercase(), 253) => {
                Address::Host(spec.address.to_ascii_lowercase().into())
            }
            Err(_) => {
                let message = format!(
                    "{:?} is neither an IP address nor a host name",
                    spec.address
                );
                return Err(FieldError::new(field("address"), message));
            }
        };
        let mut ports = BTreeMap::new();
        for (name, number) in &spec.ports {
            let number = port_number(*number)
                .map_err(|message| FieldError::new(field(&format!("ports.{name}")), message))?;
            ports.insert(name.clone(), number);
        }
        let account = spec
            .service_account
            .as_deref()
            .filter(|account| !account.is_empty())
            .unwrap_or("default");
        if !is_dns_name(account, 253) {
            return Err(FieldError::new(
                field("serviceAccount"),
                format!("{account:?} is not a valid name"),
            ));
        }
        let mut labels = spec.labels.clone();
        labels.extend(
            more_labels
                .into_iter()
                .flatten()
                .map(|(name, value)| (name.clone(), value.clone())),
        );
        let native_tunnel = labels
            .get(labels::TUNNEL)
            .is_some_and(|value| value == "http");
        Ok(Self {
            address,
            text: spec.address.clone(),
            ports,
            network: spec
                .network
                .as_deref()
                .filter(|network| !network.is_empty())
                .map(ArcStr::from),
            locality: locality(spec.locality.as_deref()),
            capacity: spec.weight.unwrap_or(1),
            service_account: account.into(),
            native_tunnel,
            labels,
        })
    }
}

fn locality(text: Option<&str>) -> Locality {
    let mut parts = text.unwrap_or_default().splitn(3, '/').map(ArcStr::from);
    let mut next = || parts.next().unwrap_or_default();
    Locality {
        region: next(),
        zone: next(),
        subzone: next(),
    }
}

fn port_number(port: u32) -> Result<u16, String> {
    u16::try_from(port)
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| format!("{port} is not a port, 1 to 65535"))
}

/// A WorkloadEntry.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WorkloadEntryInput {
    pub(crate) name: ArcStr,
    pub(crate) namespace: ArcStr,
    pub(crate) entry: EntryInput,
}

impl WorkloadEntryInput {
    pub(crate) fn read(entry: &WorkloadEntry) -> Result<Self, FieldError> {
        Ok(Self {
            name: entry.metadata.name.as_deref().unwrap_or_default().into(),
            namespace: entry
                .metadata
                .namespace
                .as_deref()
                .unwrap_or("default")
                .into(),
            entry: EntryInput::read(&entry.spec, entry.metadata.labels.as_ref(), "spec")?,
        })
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EntryPort {
    name: String,
    number: u16,
    target: Option<u16>,
    protocol: String,
}

/// A ServiceEntry.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServiceEntryInput {
    pub(crate) name: ArcStr,
    pub(crate) namespace: ArcStr,
    pub(crate) hosts: Vec<ArcStr>,
    /// By host; the empty host stands for all.
    addresses: Vec<(ArcStr, IpNet)>,
    ports: Vec<EntryPort>,
    pub(crate) endpoints: Vec<EntryInput>,
    pub(crate) selector: Option<Labels>,
    pub(crate) resolution: Resolution,
    subject_alt_names: Vec<ArcStr>,
    distribution: Option<String>,
    pub(crate) created: String,
}

impl ServiceEntryInput {
    pub(crate) fn read(entry: &ServiceEntry) -> Result<Self, FieldError> {
        let spec = &entry.spec;
        if !spec.endpoints.is_empty() && spec.workload_selector.is_some() {
            return Err(FieldError::new(
                "spec.endpoints",
                "cannot be given together with spec.workloadSelector",
            ));
        }
        let mut endpoints = Vec::new();
        let mut seen = BTreeSet::new();
        for (index, endpoint) in spec.endpoints.iter().enumerate() {
            let at = format!("spec.endpoints[{index}]");
            let endpoint = EntryInput::read(endpoint, None, &at)?;
            if !seen.insert(endpoint.text.clone()) {
                return Err(FieldError::new(
                    format!("{at}.address"),
                    format!("{:?} is given twice", endpoint.text),
                ));
            }
            endpoints.push(endpoint);
        }
        let annotation = entry
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(labels::TRAFFIC_DISTRIBUTION));
        Ok(Self {
            name: entry.metadata.name.as_deref().unwrap_or_default().into(),
            namespace: entry
                .metadata
                .namespace
                .as_deref()
                .unwrap_or("default")
                .into(),
            hosts: read_hosts(&spec.hosts)?,
            addresses: read_addresses(entry)?,
            ports: read_ports(entry)?,
            endpoints,
            selector: spec
                .workload_selector
                .as_ref()
                .map(|selector| selector.labels.clone()),
            resolution: spec.resolution,
            subject_alt_names: spec.subject_alt_names.iter().map(ArcStr::from).collect(),
            distribution: annotation.cloned(),
            created: created(&entry.metadata),
        })
    }

    /// Whether its endpoints are found by resolving its hosts.
    pub(crate) fn resolves_hosts(&self) -> bool {
        let by_dns = matches!(
            self.resolution,
            Resolution::Dns | Resolution::DnsRoundRobin | Resolution::DynamicDns
        );
        by_dns && self.endpoints.is_empty() && self.selector.is_none()
    }

    /// The record of one of its hosts, but for `canonical`.
    pub(crate) fn record(
        &self,
        host: &ArcStr,
        network: &ArcStr,
        namespace_distribution: Option<&str>,
    ) -> ServiceRecord {
        let of_host = self
            .addresses
            .iter()
            .filter(|(of, _)| of.is_empty() || of == host);
        let (mut vips, mut cidr_vips) = (Vec::new(), Vec::new());
        for (_, net) in of_host {
            if net.prefix_len() == net.max_prefix_len() {
                vips.push(model::NetworkAddress::new(network.clone(), net.addr()));
            } else {
                cidr_vips.push(model::CidrVip {
                    network: network.clone(),
                    cidr: net.trunc(),
                });
            }
        }
        let passthrough = LoadBalancing {
            mode: LbMode::Passthrough,
            health_policy: HealthPolicy::AllowAll,
            ..LoadBalancing::default()
        };
        let protocol =
            |port: &EntryPort| app_protocol(Some(&port.protocol), &port.name, port.number);
        ServiceRecord {
            app_protocols: self
                .ports
                .iter()
                .map(|port| (port.number, protocol(port)))
                .collect(),
            service: model::Service {
                name: self.name.clone(),
                namespace: self.namespace.clone(),
                hostname: host.clone(),
                vips,
                cidr_vips,
                ports: self
                    .ports
                    .iter()
                    .map(|port| (port.number, port.target.unwrap_or(port.number)))
                    .collect(),
                subject_alt_names: self.subject_alt_names.clone(),
                load_balancing: if self.resolution == Resolution::None {
                    Some(passthrough)
                } else {
                    load_balancing(
                        false,
                        self.distribution.as_deref().or(namespace_distribution),
                        HealthPolicy::OnlyHealthy,
                    )
                },
                ..model::Service::default()
            },
        }
    }

    /// Service port to target port of one of its endpoints.
    pub(crate) fn targets(&self, by_name: &BTreeMap<String, u16>) -> PortMap {
        self.ports
            .iter()
            .map(|port| {
                let target = by_name
                    .get(&port.name)
                    .copied()
                    .or(port.target)
                    .unwrap_or(port.number);
                (port.number, target)
            })
            .collect()
    }

    /// The same for a pod: a container port of the entry port's name counts.
    pub(crate) fn targets_in(&self, pod: &PodInput) -> PortMap {
        self.targets(&pod.ports)
    }
}

fn read_hosts(hosts: &[String]) -> Result<Vec<ArcStr>, FieldError> {
    if hosts.is_empty() {
        return Err(FieldError::new("spec.hosts", "must name at least one host"));
    }
    let mut read: Vec<ArcStr> = Vec::new();
    for (index, host) in hosts.iter().enumerate() {
        let lower = host.to_ascii_lowercase();
        if !is_dns_name(lower.strip_prefix("*.").unwrap_or(&lower), 253) {
            return Err(FieldError::new(
                format!("spec.hosts[{index}]"),
                format!("{host:?} is not a host name"),
            ));
        }
        if !read.iter().any(|other| *other == lower) {
            read.push(lower.into());
        }
    }
    Ok(read)
}

fn read_addresses(entry: &ServiceEntry) -> Result<Vec<(ArcStr, IpNet)>, FieldError> {
    let mut read = Vec::new();
    for (index, text) in entry.spec.addresses.iter().enumerate() {
        read.push((
            ArcStr::new(),
            read_net(text, || format!("spec.addresses[{index}]"))?,
        ));
    }
    if read.is_empty() {
        let given = entry
            .status
            .get("addresses")
            .and_then(|addresses| addresses.as_array());
        for (index, address) in given.into_iter().flatten().enumerate() {
            let text = |name: &str| {
                address
                    .get(name)
                    .and_then(|value| value.as_str())
                    .unwrap_or_default()
            };
            let net = read_net(text("value"), || format!("status.addresses[{index}].value"))?;
            read.push((text("host").into(), net));
        }
    }
    Ok(read)
}

fn read_net(text: &str, field: impl Fn() -> String) -> Result<IpNet, FieldError> {
    let ip = text
        .parse::<IpAddr>()
        .map(|ip| IpNet::from(ip.to_canonical()));
    ip.or_else(|_| text.parse::<IpNet>()).map_err(|_| {
        FieldError::new(
            field(),
            format!("{text:?} is neither an IP address nor a prefix"),
        )
    })
}

fn read_ports(entry: &ServiceEntry) -> Result<Vec<EntryPort>, FieldError> {
    let mut ports: Vec<EntryPort> = Vec::new();
    for (index, port) in entry.spec.ports.iter().enumerate() {
        let field = |name: &str| format!("spec.ports[{index}].{name}");
        let number = port_number(port.number)
            .map_err(|message| FieldError::new(field("number"), message))?;
        let target = port
            .target_port
            .filter(|target| *target != 0)
            .map(port_number)
            .transpose()
            .map_err(|message| FieldError::new(field("targetPort"), message))?;
        if ports.iter().any(|other| other.number == number) {
            return Err(FieldError::new(
                field("number"),
                format!("{number} is given twice"),
            ));
        }
        ports.push(EntryPort {
            name: port.name.clone(),
            number,
            target,
            protocol: port.protocol.clone(),
        });
    }
    Ok(ports)
}
