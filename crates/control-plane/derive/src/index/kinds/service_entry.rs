//! Service entries: each is the record of its hosts, and their endpoints are workloads.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ambit_k8s_api::{ObjectKey, ServiceEntry, created, is_dns_name, istio::Resolution, labels};
use ambit_model as model;
use ambit_model::{
    AppProtocol, ArcStr, GatewayName, HealthPolicy, Identity, LbMode, LoadBalancing,
    NamespacedHostname, PortMap, Visibility, Workload,
};
use ipnet::IpNet;

use super::{
    namespace,
    pod::PodInput,
    service::{ServiceRecord, app_protocol, load_balancing},
    workload_entry::{self, EndpointInput, port_number, workload_of_endpoint},
};
use crate::{
    Labels, MeshConfig, PodDirectory,
    condition::{BOUND, ConditionType, Standing, USED},
    index::{
        Binding, Index, MeshView,
        exports::{Export, short_names},
        kind::{Change, Claim, Extent, Followed, MeshKind, Read, Rendered},
        references::Edge,
    },
    problem::{FieldError, Note},
};

impl Followed for ServiceEntry {
    const EXTENT: Extent = Extent::Whole { labels: None };
}

impl MeshKind for ServiceEntry {
    type Input = ServiceEntryInput;

    const CONDITIONS: &'static [ConditionType] = &[BOUND, USED];

    fn read(&self, config: &MeshConfig) -> Result<Read<ServiceEntryInput>, FieldError> {
        let (input, notes) = ServiceEntryInput::read(self, config)?;
        Ok(Read::of(Some(input), notes))
    }

    fn changed(index: &mut Index, change: &Change<'_, ServiceEntryInput>, _: &mut PodDirectory) {
        let key = change.key;
        let named = |entry: Option<&ServiceEntryInput>| -> Vec<IpNet> {
            entry.into_iter().flat_map(|entry| entry.named()).collect()
        };
        index
            .view
            .addresses
            .name(key, &named(change.old), &named(change.new));
        let hosts = |entry: Option<&ServiceEntryInput>| -> Vec<ArcStr> {
            entry.map(|entry| entry.hosts.clone()).unwrap_or_default()
        };
        let (old, new) = (hosts(change.old), hosts(change.new));
        index
            .view
            .references
            .replace(Edge::ShortName, key, short_names(&old), short_names(&new));
        index.declare(key, old, new);
        index.mark(key.clone());
        for entry in change.both() {
            index.mark_selected(&key.namespace, entry.selector.as_ref());
        }
        let bindings = |entry: Option<&ServiceEntryInput>| -> Vec<GatewayName> {
            entry
                .into_iter()
                .flat_map(|entry| entry.gateways())
                .collect()
        };
        let (old, new) = (bindings(change.old), bindings(change.new));
        if old != new {
            index.rebind(key, old, new);
        }
        let own = |entry: Option<&ServiceEntryInput>| entry.and_then(|one| one.binding.clone());
        index.relabel(key, own(change.old).as_ref(), own(change.new).as_ref());
        index.mark_attached_to(key);
        index.mark_users_of_providers();
    }

    fn render(view: &MeshView, key: &ObjectKey, entry: &ServiceEntryInput) -> Rendered {
        Rendered {
            workloads: workloads(view, key, entry),
            conflicts: conflicts(view, key, entry),
            ..Rendered::default()
        }
    }

    fn standing(view: &MeshView, key: &ObjectKey, entry: &ServiceEntryInput) -> Option<Standing> {
        let attachment = view.waypoint_of_service(key);
        let hosts = view.hosts_won(entry);
        let serving = hosts.flat_map(|host| view.waypoints_serving(key, host));
        Some(view.bound(attachment.as_ref(), &serving.collect()))
    }

    fn claim<'a>(
        view: &MeshView,
        entry: &'a ServiceEntryInput,
        host: &ArcStr,
    ) -> Option<Claim<'a>> {
        let visibility = view.visibility(entry, host)?;
        Some(Claim {
            is_kubernetes: false,
            created: &entry.created,
            is_public: visibility == Visibility::Public,
        })
    }

    fn service(view: &MeshView, entry: &ServiceEntryInput, host: &ArcStr) -> Option<ServiceRecord> {
        let distribution = namespace::distribution(view, &entry.namespace);
        let is_free = |net: &IpNet| taken_by(view, entry, net).is_none();
        let mut record = entry.record(host, &view.network, distribution, is_free);
        record.service.visibility = view.visibility(entry, host)?;
        let aliases = view.own_trust_domain_names();
        let is_published = |name: &ArcStr| {
            !is_of_another_namespace(name, &entry.namespace, &view.config, |td| aliases.has(td))
        };
        record.service.subject_alt_names.retain(is_published);
        Some(record)
    }
}

fn is_prefix(net: &IpNet) -> bool {
    net.prefix_len() != net.max_prefix_len()
}

/// The Service or pod because of which an address of an entry is not published. Of a prefix, proxies leave out what
/// Services and pods have in it; a node's address, which is no pod's own, they cannot tell from others, so that a
/// prefix with pods of other namespaces is published only where connections keep their destination.
fn taken_by<'a>(
    view: &'a MeshView,
    entry: &ServiceEntryInput,
    net: &IpNet,
) -> Option<&'a ObjectKey> {
    if !is_prefix(net) {
        return view.owner_within(net);
    }
    let owner = view.owner_elsewhere(net, &entry.namespace);
    owner.filter(|_| entry.resolution != Resolution::None)
}

/// Part of an entry's address that proxies leave out, or the reason why it is not published.
fn conflict(view: &MeshView, entry: &ServiceEntryInput, net: &IpNet) -> Option<String> {
    let taken = taken_by(view, entry, net);
    if let Some(owner) = taken.filter(|_| is_prefix(net)) {
        return Some(format!(
            "{net} has addresses of other namespaces' pods, for instance of {owner}: it is not published"
        ));
    }
    if let Some(owner) = taken {
        return Some(format!(
            "{} belongs to {owner}: it is not published",
            net.addr()
        ));
    }
    let owner = view.owner_within(net)?;
    Some(format!(
        "{net} has addresses of Services or pods, for instance of {owner}: these are reached as themselves"
    ))
}

/// Notes on parts of an entry that have no effect because of other objects, or of the mesh's settings.
fn conflicts(view: &MeshView, key: &ObjectKey, entry: &ServiceEntryInput) -> Vec<Note> {
    let endpoints = entry.endpoints.iter().enumerate();
    let endpoints = endpoints.filter_map(|(number, endpoint)| {
        let field = format!("spec.endpoints[{number}].address");
        workload_entry::conflict(view, &field, endpoint)
    });
    let taken = entry.addresses().filter_map(|(field, net)| {
        let message = conflict(view, entry, net)?;
        Some(Note::new(field.clone(), message))
    });
    endpoints
        .chain(taken)
        .chain(unresolved(view, key, entry))
        .chain(hidden(view, entry))
        .collect()
}

/// Hosts that are not published, or to fewer namespaces than in the entry's `exportTo`.
fn hidden(view: &MeshView, entry: &ServiceEntryInput) -> Vec<Note> {
    let own = &entry.namespace;
    let reserved = entry.hosts.iter().filter_map(|host| {
        let why = view.reservation(entry, host)?;
        let message = format!(
            "{host} is reserved ({why}) and is not published: choose another name, or write the entry in {}",
            view.config.root_namespace
        );
        Some(Note::new("spec.hosts", message))
    });
    let mut notes: Vec<Note> = reserved.collect();
    let export = view.export_of(entry);
    if entry.export.is_some_and(|requested| requested > export) {
        let message = format!(
            "entries of {own} are seen in {own} alone, as long as meshConfig.defaultServiceExportTo of the \
             {} does not have \"*\"",
            view.settings_key()
        );
        notes.push(Note::new("spec.exportTo", message));
    }
    let is_narrowed = |host: &&ArcStr| {
        export == Export::All && view.visibility(entry, host) == Some(Visibility::Namespace)
    };
    let narrowed = entry.hosts.iter().filter(is_narrowed).map(|host| {
        let message = format!(
            "{host} is seen in {own} alone: without a dot it is a name that every namespace has for a Service of its own"
        );
        Note::new("spec.hosts", message)
    });
    notes.extend(narrowed);
    notes
}

/// Why nothing comes of the hosts that calls name.
fn unresolved(view: &MeshView, key: &ObjectKey, entry: &ServiceEntryInput) -> Option<Note> {
    if !entry.hosts.iter().any(|host| entry.resolves_named(host)) {
        return None;
    }
    let attachment = view.waypoint_of_service(key);
    let is_served = attachment.is_some_and(|to| to.outcome.is_ok());
    (!is_served).then(|| {
        let message = "hosts below a wildcard are resolved by a waypoint: without one (istio.io/use-waypoint) connections are refused";
        Note::new("spec.resolution", message)
    })
}

fn workloads(view: &MeshView, key: &ObjectKey, entry: &ServiceEntryInput) -> Vec<Workload> {
    let Some(objects) = view.objects(&key.namespace) else {
        return Vec::new();
    };
    let hosts: BTreeSet<&ArcStr> = view.hosts_won(entry).collect();
    let uid = |address: &str| {
        view.uid(&format!(
            "networking.istio.io/ServiceEntry/{}/{}/{address}",
            key.namespace, key.name
        ))
    };
    if entry.resolves_hosts() {
        // A wildcard names nothing that could be resolved.
        return hosts
            .into_iter()
            .filter(|host| !host.starts_with('*'))
            .map(|host| {
                let name = NamespacedHostname::new(key.namespace.clone(), host.clone());
                Workload {
                    uid: uid(host),
                    hostname: host.clone(),
                    workload_name: key.name.clone(),
                    canonical_name: key.name.clone(),
                    canonical_revision: "latest".into(),
                    services: [(name, entry.targets(&BTreeMap::new()))].into(),
                    ..view.base(&key.namespace, &key.name)
                }
            })
            .collect();
    }
    if hosts.is_empty() {
        return Vec::new();
    }
    let endpoints = entry.endpoints.iter();
    endpoints
        .map(|endpoint| {
            let name = |host: &ArcStr| NamespacedHostname::new(key.namespace.clone(), host.clone());
            let services = hosts
                .iter()
                .map(|host| (name(host), entry.targets(&endpoint.ports)))
                .collect();
            workload_of_endpoint(view, objects, key, uid(&endpoint.text), endpoint, services)
        })
        .collect()
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EntryPort {
    name: String,
    number: u16,
    target: Option<u16>,
    protocol: String,
}

/// Input of a ServiceEntry.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServiceEntryInput {
    pub(crate) name: ArcStr,
    pub(crate) namespace: ArcStr,
    pub(crate) hosts: Vec<ArcStr>,
    /// By host, with their field; the empty host means all.
    addresses: Vec<(ArcStr, IpNet, String)>,
    ports: Vec<EntryPort>,
    pub(crate) endpoints: Vec<EndpointInput>,
    pub(crate) selector: Option<Labels>,
    pub(crate) resolution: Resolution,
    /// Whether its location is outside the mesh, which is the default.
    pub(crate) is_external: bool,
    subject_alt_names: Vec<ArcStr>,
    distribution: Option<String>,
    /// The entry's `exportTo`; `None`: no field.
    pub(crate) export: Option<Export>,
    pub(crate) created: String,
    /// The waypoint that its labels name.
    pub(crate) binding: Option<Binding>,
}

impl ServiceEntryInput {
    fn read(entry: &ServiceEntry, config: &MeshConfig) -> Result<(Self, Vec<Note>), FieldError> {
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
            let endpoint = EndpointInput::read(endpoint, None, &at)?;
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
        let own_labels = entry.metadata.labels.as_ref();
        note_wildcards(entry, &mut notes);
        let input = Self {
            name: entry.metadata.name.as_deref().unwrap_or_default().into(),
            namespace: namespace.into(),
            hosts: read_hosts(&spec.hosts)?,
            export,
            addresses: read_addresses(entry)?,
            ports: read_ports(entry)?,
            endpoints,
            selector: spec.selected_labels().cloned(),
            resolution: spec.resolution,
            is_external: spec.location.as_deref() != Some("MESH_INTERNAL"),
            subject_alt_names: read_names(&spec.subject_alt_names, namespace, config, &mut notes),
            distribution: annotation.cloned(),
            created: created(&entry.metadata),
            binding: own_labels.and_then(|all| Binding::of(all, namespace)),
        };
        Ok((input, notes))
    }

    /// The Gateways that its labels and those of its endpoints name.
    fn gateways(&self) -> impl Iterator<Item = GatewayName> {
        let endpoints = self.endpoints.iter();
        let endpoints =
            endpoints.filter_map(|endpoint| Binding::of(&endpoint.labels, &self.namespace));
        let all = self.binding.clone().into_iter().chain(endpoints);
        all.filter_map(|binding| binding.gateway().cloned())
    }

    /// The names and numbers of its ports, and what these speak.
    pub(crate) fn declared_ports(&self) -> impl Iterator<Item = (&str, u16, AppProtocol)> {
        let ports = self.ports.iter();
        ports.map(|port| {
            let protocol = app_protocol(Some(&port.protocol), &port.name, port.number);
            (port.name.as_str(), port.number, protocol)
        })
    }

    /// Its virtual addresses with the fields they stand in.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = (&String, &IpNet)> {
        self.addresses.iter().map(|(_, net, field)| (field, net))
    }

    /// Every address that it names, of its own or of endpoints.
    pub(crate) fn named(&self) -> impl Iterator<Item = IpNet> {
        let endpoints = self.endpoints.iter().filter_map(EndpointInput::ip);
        let own = self.addresses.iter().map(|(_, net, _)| *net);
        own.chain(endpoints.map(IpNet::from))
    }

    /// Whether a host of it is a wildcard, and calls name the host that is to be resolved.
    pub(crate) fn resolves_named(&self, host: &str) -> bool {
        self.resolution == Resolution::DynamicDns && self.resolves_hosts() && host.starts_with('*')
    }

    /// Whether its endpoints are found by resolving its hosts.
    pub(crate) fn resolves_hosts(&self) -> bool {
        let by_dns = matches!(
            self.resolution,
            Resolution::Dns | Resolution::DnsRoundRobin | Resolution::DynamicDns
        );
        by_dns && self.endpoints.is_empty() && self.selector.is_none()
    }

    /// Virtual addresses of one of its hosts.
    pub(crate) fn addresses_of(&self, host: &ArcStr) -> impl Iterator<Item = &IpNet> {
        let of_host = self.addresses.iter();
        let of_host = of_host.filter(move |(of, ..)| of.is_empty() || of == host);
        of_host.map(|(_, net, _)| net)
    }

    /// The record of one of its hosts with those of its addresses that are free, but for what depends on other
    /// objects: `canonical` and `visibility`.
    pub(crate) fn record(
        &self,
        host: &ArcStr,
        network: &ArcStr,
        namespace_distribution: Option<&str>,
        is_free: impl Fn(&IpNet) -> bool,
    ) -> ServiceRecord {
        let (mut vips, mut cidr_vips) = (Vec::new(), Vec::new());
        for net in self.addresses_of(host).filter(|net| is_free(net)) {
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
        ServiceRecord {
            ingress_use_waypoint: false,
            app_protocols: self
                .declared_ports()
                .map(|(.., protocol)| protocol)
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

/// Notes wildcard hosts that cannot be resolved.
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

/// `*`, `.` (its own namespace), `~` (none) and namespaces by name. Records can be seen by all namespaces or by their
/// own: of a list of others, its own is what is left.
fn read_export(export_to: &[String], namespace: &str, notes: &mut Vec<Note>) -> Option<Export> {
    if export_to.is_empty() {
        return None;
    }
    if export_to.iter().any(|one| one == "*") {
        return Some(Export::All);
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
    Some(if sees_it { Export::Own } else { Export::None })
}

/// The names that endpoints may present. Only entries of the root namespace may name identities of other namespaces: a
/// waypoint would take every workload with such an identity for an endpoint of the entry, and connect to it as itself.
fn read_names(
    names: &[String],
    namespace: &str,
    config: &MeshConfig,
    notes: &mut Vec<Note>,
) -> Vec<ArcStr> {
    let is_foreign = |name: &str| {
        let is_own = |trust_domain: &str| trust_domain == config.trust_domain;
        is_of_another_namespace(name, namespace, config, is_own)
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

/// Whether a name is an identity of another namespace of this mesh, in an entry that may not name it.
fn is_of_another_namespace(
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
