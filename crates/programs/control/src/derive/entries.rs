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
use ambit_model::{ArcStr, HealthPolicy, LbMode, LoadBalancing, Locality, PortMap, Visibility};
use ipnet::IpNet;

use super::{
    Labels, MeshConfig,
    pods::PodInput,
    services::{ServiceRecord, app_protocol, created, load_balancing},
};
use crate::problems::{FieldError, Note};

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
    /// The address that it names.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        match self.address {
            Address::Ip(ip) => Some(ip),
            Address::Host(_) => None,
        }
    }

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
        // Without one it has no identity: nothing that it could be called by is made up for it.
        let account = spec.service_account.as_deref().unwrap_or_default();
        if !account.is_empty() && !is_dns_name(account, 253) {
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
    /// Hosts of other namespaces' Services.
    foreign: Vec<ArcStr>,
    /// By host, with their field; the empty host stands for all.
    addresses: Vec<(ArcStr, IpNet, String)>,
    ports: Vec<EntryPort>,
    pub(crate) endpoints: Vec<EntryInput>,
    pub(crate) selector: Option<Labels>,
    pub(crate) resolution: Resolution,
    subject_alt_names: Vec<ArcStr>,
    distribution: Option<String>,
    export: Export,
    pub(crate) created: String,
}

/// Which namespaces see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Export {
    All,
    Own,
    None,
}

impl ServiceEntryInput {
    pub(crate) fn read(
        entry: &ServiceEntry,
        config: &MeshConfig,
    ) -> Result<(Self, Vec<Note>), FieldError> {
        let spec = &entry.spec;
        let namespace = entry.metadata.namespace.as_deref().unwrap_or("default");
        let mut notes = Vec::new();
        let export = read_export(&spec.export_to, namespace, &mut notes);
        if !spec.endpoints.is_empty() && spec.selected_labels().is_some() {
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
        let hosts = read_hosts(&spec.hosts)?;
        let foreign = hosts.iter().filter(|host| {
            namespace != config.root_namespace && is_foreign(host, namespace, config)
        });
        let foreign: Vec<_> = foreign.cloned().collect();
        if !foreign.is_empty() {
            let message = format!(
                "{}: names of other namespaces' Services are seen in this namespace only",
                foreign.join(", ")
            );
            notes.push(Note::new("spec.hosts", message));
        }
        let input = Self {
            name: entry.metadata.name.as_deref().unwrap_or_default().into(),
            namespace: namespace.into(),
            hosts,
            foreign,
            export,
            addresses: read_addresses(entry)?,
            ports: read_ports(entry)?,
            endpoints,
            selector: spec.selected_labels().cloned(),
            resolution: spec.resolution,
            subject_alt_names: spec.subject_alt_names.iter().map(ArcStr::from).collect(),
            distribution: annotation.cloned(),
            created: created(&entry.metadata),
        };
        Ok((input, notes))
    }

    /// Whether any namespace sees it.
    pub(crate) fn is_exported(&self) -> bool {
        self.export != Export::None
    }

    /// Which namespaces see one of its hosts.
    pub(crate) fn visibility(&self, host: &ArcStr) -> Visibility {
        match self.export {
            Export::All if !self.foreign.contains(host) => Visibility::Public,
            _ => Visibility::Namespace,
        }
    }

    /// Its virtual addresses with the fields they stand in.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = (&String, &IpNet)> {
        self.addresses.iter().map(|(_, net, field)| (field, net))
    }

    /// Every address that it names, of its own or of endpoints.
    pub(crate) fn named(&self) -> impl Iterator<Item = IpNet> {
        let endpoints = self.endpoints.iter().filter_map(EntryInput::ip);
        let own = self.addresses.iter().map(|(_, net, _)| *net);
        own.chain(endpoints.map(IpNet::from))
    }

    /// Whether its endpoints are found by resolving its hosts.
    pub(crate) fn resolves_hosts(&self) -> bool {
        let by_dns = matches!(
            self.resolution,
            Resolution::Dns | Resolution::DnsRoundRobin | Resolution::DynamicDns
        );
        by_dns && self.endpoints.is_empty() && self.selector.is_none()
    }

    /// The record of one of its hosts, but for `canonical`, with those of its addresses that are free.
    pub(crate) fn record(
        &self,
        host: &ArcStr,
        network: &ArcStr,
        namespace_distribution: Option<&str>,
        is_free: impl Fn(&Self, &IpNet) -> bool,
    ) -> ServiceRecord {
        let of_host = self
            .addresses
            .iter()
            .filter(|(of, net, _)| (of.is_empty() || of == host) && is_free(self, net));
        let (mut vips, mut cidr_vips) = (Vec::new(), Vec::new());
        for (_, net, _) in of_host {
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
            app_protocols: self.ports.iter().map(protocol).collect(),
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
                visibility: self.visibility(host),
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

/// `*`, `.` (its own namespace), `~` (none) and namespaces by name; nothing is `*`. Records can be seen
/// by all namespaces or by their own: of a list of others, its own is what is left.
fn read_export(export_to: &[String], namespace: &str, notes: &mut Vec<Note>) -> Export {
    if export_to.is_empty() || export_to.iter().any(|one| one == "*") {
        return Export::All;
    }
    let is_own = |one: &&String| *one == "." || *one == namespace;
    let others = export_to.iter().filter(|one| !is_own(one) && *one != "~");
    let others: Vec<_> = others.map(String::as_str).collect();
    if !others.is_empty() {
        let message = format!(
            "{}: cannot be shown to single other namespaces, and is not; only \"*\" and \".\" can be said to node proxies",
            others.join(", ")
        );
        notes.push(Note::new("spec.exportTo", message));
    }
    if export_to.iter().any(|one| is_own(&one)) {
        Export::Own
    } else {
        Export::None
    }
}

/// Whether a host is, or a wildcard could be, the name of a Service of another namespace.
fn is_foreign(host: &str, namespace: &str, config: &MeshConfig) -> bool {
    let services = format!("svc.{}", config.cluster_domain);
    let name = host.strip_prefix("*.").unwrap_or(host);
    let covers_all = ["svc", services.as_str()].contains(&name);
    if host != name && (covers_all || services.ends_with(&format!(".{name}"))) {
        return true;
    }
    // `<service>.<namespace>.svc` is looked up, too.
    let of_services = name
        .strip_suffix(services.as_str())
        .or_else(|| name.strip_suffix("svc"));
    let Some(of) = of_services.and_then(|of| of.strip_suffix('.')) else {
        return false;
    };
    of.rsplit('.').next() != Some(namespace)
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

fn read_addresses(entry: &ServiceEntry) -> Result<Vec<(ArcStr, IpNet, String)>, FieldError> {
    let mut read = Vec::new();
    for (index, text) in entry.spec.addresses.iter().enumerate() {
        let field = format!("spec.addresses[{index}]");
        read.push((ArcStr::new(), read_net(text, &field)?, field));
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
            let field = format!("status.addresses[{index}].value");
            read.push((text("host").into(), read_net(text("value"), &field)?, field));
        }
    }
    Ok(read)
}

fn read_net(text: &str, field: &str) -> Result<IpNet, FieldError> {
    let ip = text
        .parse::<IpAddr>()
        .map(|ip| IpNet::from(ip.to_canonical()));
    ip.or_else(|_| text.parse::<IpNet>()).map_err(|_| {
        FieldError::new(
            field,
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
