//! Parsing of ServiceEntries: each host becomes a service record, and each endpoint a workload.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ambit_k8s_api::{ServiceEntry, created, is_dns_name, istio::Resolution, labels};
use ambit_model::{AppProtocol, ArcStr, GatewayName, Identity, PortMap};
use ipnet::IpNet;

use crate::{
    config::MeshConfig,
    labels::Labels,
    objects::{
        binding::WaypointSelection,
        export::ExportTo,
        pod::PodInput,
        readable::{FetchExtent, FetchedKind, Parsed, Readable},
        service::app_protocol,
        workload_entry::{EndpointInput, port_number},
    },
    problem::{FieldError, Note},
};

impl FetchedKind for ServiceEntry {
    const FETCH_EXTENT: FetchExtent = FetchExtent::Whole { labels: None };
}

impl Readable for ServiceEntry {
    type Input = ServiceEntryInput;

    fn read(&self, config: &MeshConfig) -> Result<Parsed<ServiceEntryInput>, FieldError> {
        let (input, notes) = ServiceEntryInput::read(self, config)?;
        Ok(Parsed::new(Some(input), notes))
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EntryPort {
    name: String,
    pub(crate) number: u16,
    pub(crate) target_port: Option<u16>,
    protocol: String,
}

/// Parsed ServiceEntry object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServiceEntryInput {
    pub(crate) name: ArcStr,
    pub(crate) namespace: ArcStr,
    pub(crate) hosts: Vec<ArcStr>,
    /// Virtual addresses: host (empty for all hosts), address, and the field that it was read from.
    addresses: Vec<(ArcStr, IpNet, String)>,
    pub(crate) ports: Vec<EntryPort>,
    pub(crate) endpoints: Vec<EndpointInput>,
    pub(crate) selector: Option<Labels>,
    pub(crate) resolution: Resolution,
    /// Whether the entry's location is outside the mesh (`MESH_EXTERNAL`, the default).
    pub(crate) is_external: bool,
    pub(crate) subject_alt_names: Vec<ArcStr>,
    pub(crate) traffic_distribution: Option<String>,
    /// Visibility by the entry's `exportTo`; `None` if the field is unset.
    pub(crate) export_to: Option<ExportTo>,
    pub(crate) created: String,
    /// Waypoint that the entry's labels select.
    pub(crate) binding: Option<WaypointSelection>,
}

impl ServiceEntryInput {
    fn read(entry: &ServiceEntry, config: &MeshConfig) -> Result<(Self, Vec<Note>), FieldError> {
        let spec = &entry.spec;
        let namespace = entry.metadata.namespace.as_deref().unwrap_or("default");
        let mut notes = Vec::new();
        let export = read_export_to(&spec.export_to, namespace, &mut notes);
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
            let endpoint = EndpointInput::read(endpoint, None, &at)?;
            if !seen.insert(endpoint.address_text.clone()) {
                return Err(FieldError::new(
                    format!("{at}.address"),
                    format!("{:?} is given twice", endpoint.address_text),
                ));
            }
            endpoints.push(endpoint);
        }
        let annotation = entry
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(labels::TRAFFIC_DISTRIBUTION));
        let own_labels = entry.metadata.labels.as_ref();
        note_wildcards(entry, &mut notes);
        let input = Self {
            name: entry.metadata.name.as_deref().unwrap_or_default().into(),
            namespace: namespace.into(),
            hosts: read_hosts(&spec.hosts)?,
            export_to: export,
            addresses: read_addresses(entry)?,
            ports: read_ports(entry)?,
            endpoints,
            selector: spec.selected_labels().cloned(),
            resolution: spec.resolution,
            is_external: spec.location.as_deref() != Some("MESH_INTERNAL"),
            subject_alt_names: read_subject_alt_names(
                &spec.subject_alt_names,
                namespace,
                config,
                &mut notes,
            ),
            traffic_distribution: annotation.cloned(),
            created: created(&entry.metadata),
            binding: own_labels.and_then(|all| WaypointSelection::from_labels(all, namespace)),
        };
        Ok((input, notes))
    }

    /// Returns the Gateways that the labels of the entry and of its endpoints name.
    pub(crate) fn gateways(&self) -> impl Iterator<Item = GatewayName> {
        let endpoints = self.endpoints.iter();
        let endpoints = endpoints.filter_map(|endpoint| {
            WaypointSelection::from_labels(&endpoint.labels, &self.namespace)
        });
        let all = self.binding.clone().into_iter().chain(endpoints);
        all.filter_map(|binding| binding.gateway().cloned())
    }

    /// Returns name, number and application protocol of each port.
    pub(crate) fn declared_ports(&self) -> impl Iterator<Item = (&str, u16, AppProtocol)> {
        let ports = self.ports.iter();
        ports.map(|port| {
            let protocol = app_protocol(Some(&port.protocol), &port.name, port.number);
            (port.name.as_str(), port.number, protocol)
        })
    }

    /// Returns the virtual addresses of all hosts, each with the field that it was read from.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = (&String, &IpNet)> {
        self.addresses.iter().map(|(_, net, field)| (field, net))
    }

    /// Returns all addresses in the entry: its virtual addresses, and the addresses of its endpoints.
    pub(crate) fn all_addresses(&self) -> impl Iterator<Item = IpNet> {
        let endpoints = self.endpoints.iter().filter_map(EndpointInput::ip);
        let own = self.addresses.iter().map(|(_, net, _)| *net);
        own.chain(endpoints.map(IpNet::from))
    }

    /// Whether the host is a wildcard with the resolution `DYNAMIC_DNS`: proxies resolve the name that each client asks
    /// for.
    pub(crate) fn resolves_requested_names(&self, host: &str) -> bool {
        self.resolution == Resolution::DynamicDns && self.resolves_hosts() && host.starts_with('*')
    }

    /// Whether proxies find the entry's endpoints by resolving its hosts in DNS.
    pub(crate) fn resolves_hosts(&self) -> bool {
        let by_dns = matches!(
            self.resolution,
            Resolution::Dns | Resolution::DnsRoundRobin | Resolution::DynamicDns
        );
        by_dns && self.endpoints.is_empty() && self.selector.is_none()
    }

    /// Returns the virtual addresses of one host.
    pub(crate) fn addresses_of(&self, host: &ArcStr) -> impl Iterator<Item = &IpNet> {
        let of_host = self.addresses.iter();
        let of_host = of_host.filter(move |(of, ..)| of.is_empty() || of == host);
        of_host.map(|(_, net, _)| net)
    }

    /// Maps service ports to target ports of one endpoint, which may override them by the port's name.
    pub(crate) fn target_ports_by_name(&self, by_name: &BTreeMap<String, u16>) -> PortMap {
        self.ports
            .iter()
            .map(|port| {
                let target = by_name
                    .get(&port.name)
                    .copied()
                    .or(port.target_port)
                    .unwrap_or(port.number);
                (port.number, target)
            })
            .collect()
    }

    /// Maps service ports to target ports in a pod; a container port with the name of the entry's port takes
    /// precedence.
    pub(crate) fn target_ports_in(&self, pod: &PodInput) -> PortMap {
        self.target_ports_by_name(&pod.ports)
    }
}

/// Adds notes on wildcard hosts that cannot be resolved.
fn note_wildcards(entry: &ServiceEntry, notes: &mut Vec<Note>) {
    let spec = &entry.spec;
    if !spec.hosts.iter().any(|host| host.starts_with('*')) || !spec.endpoints.is_empty() {
        return;
    }
    match spec.resolution {
        Resolution::Dns | Resolution::DnsRoundRobin => {
            let message =
                "a wildcard is no name that could be resolved: use DYNAMIC_DNS, with a waypoint";
            notes.push(Note::new("spec.resolution", message));
        }
        Resolution::DynamicDns => {
            let says_host = |protocol: AppProtocol| !matches!(protocol, AppProtocol::Tcp);
            for (index, port) in spec.ports.iter().enumerate() {
                let number = u16::try_from(port.number).unwrap_or_default();
                let protocol = app_protocol(Some(&port.protocol), &port.name, number);
                if !says_host(protocol) {
                    let message = "connections that are neither HTTP nor TLS with a server name do not say which host is meant: they are refused";
                    notes.push(Note::new(format!("spec.ports[{index}].protocol"), message));
                }
            }
        }
        Resolution::None | Resolution::Static => {}
    }
}

/// Parses `exportTo`: `*`, `.` (the entry's own namespace), `~` (none) and names of namespaces. Records are visible in
/// all namespaces or in the entry's own: names of other namespaces are noted and have no effect.
fn read_export_to(
    export_to: &[String],
    namespace: &str,
    notes: &mut Vec<Note>,
) -> Option<ExportTo> {
    if export_to.is_empty() {
        return None;
    }
    if export_to.iter().any(|one| one == "*") {
        return Some(ExportTo::All);
    }
    let is_own = |one: &&String| *one == "." || *one == namespace;
    let others = export_to.iter().filter(|one| !is_own(one) && *one != "~");
    let others: Vec<_> = others.map(String::as_str).collect();
    if !others.is_empty() {
        let message = format!(
            "{}: cannot be exported to single other namespaces, and is not; node proxies support only \"*\" and \".\"",
            others.join(", ")
        );
        notes.push(Note::new("spec.exportTo", message));
    }
    let sees_it = export_to.iter().any(|one| is_own(&one));
    Some(if sees_it {
        ExportTo::OwnNamespace
    } else {
        ExportTo::None
    })
}

/// Parses the `subjectAltNames` of an entry. Only entries of the root namespace may name identities of other
/// namespaces: a waypoint would accept every workload with such an identity as an endpoint of the entry.
fn read_subject_alt_names(
    names: &[String],
    namespace: &str,
    config: &MeshConfig,
    notes: &mut Vec<Note>,
) -> Vec<ArcStr> {
    let is_foreign = |name: &str| {
        let is_own = |trust_domain: &str| trust_domain == config.trust_domain;
        names_another_namespace(name, namespace, config, is_own)
    };
    let mut read = Vec::new();
    for (index, name) in names.iter().enumerate() {
        if is_foreign(name) {
            let message = format!(
                "{name} is an identity of another namespace and is not published: endpoints of entries of {namespace} \
                 have identities of {namespace}; write the entry in {} to accept others",
                config.root_namespace
            );
            notes.push(Note::new(format!("spec.subjectAltNames[{index}]"), message));
        } else {
            read.push(name.into());
        }
    }
    read
}

/// Whether a SAN is the SPIFFE identity of another namespace of this mesh, in an entry that may not name one.
pub(crate) fn names_another_namespace(
    name: &str,
    namespace: &str,
    config: &MeshConfig,
    is_own: impl Fn(&str) -> bool,
) -> bool {
    let identity = name.parse::<Identity>();
    namespace != config.root_namespace
        && identity
            .is_ok_and(|identity| is_own(&identity.trust_domain) && identity.namespace != namespace)
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
        read.push((ArcStr::new(), read_ip_net(text, &field)?, field));
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
            read.push((
                text("host").into(),
                read_ip_net(text("value"), &field)?,
                field,
            ));
        }
    }
    Ok(read)
}

fn read_ip_net(text: &str, field: &str) -> Result<IpNet, FieldError> {
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
            target_port: target,
            protocol: port.protocol.clone(),
        });
    }
    Ok(ports)
}
