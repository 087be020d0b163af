//! Records and status conditions of ServiceEntries: service records of their hosts, and workload records of their
//! endpoints.

use std::collections::{BTreeMap, BTreeSet};

use ambit_k8s_api::{ObjectKey, ServiceEntry, istio::Resolution};
use ambit_model::{
    self as model, ArcStr, GatewayName, HealthPolicy, LbMode, LoadBalancing, NamespacedHostname,
    Visibility, Workload,
};
use ipnet::IpNet;

use crate::{
    condition::{ConditionType, DerivedStatus, ENTRY_USED, WAYPOINT_BOUND},
    index::{Index, change::Change},
    kinds::{
        kind::{HostClaim, MeshKind},
        namespace,
        service::load_balancing,
        workload_entry::{self, workload_of_endpoint},
    },
    objects::{
        export::ExportTo,
        service_entry::{ServiceEntryInput, names_another_namespace},
    },
    pod_directory::PodDirectory,
    problem::Note,
    records::ServiceRecord,
    relations::references::ReferenceKind,
    view::{MeshView, exports::short_names, rendered::RenderedRecords},
};

impl MeshKind for ServiceEntry {
    const CONDITIONS: &'static [ConditionType] = &[WAYPOINT_BOUND, ENTRY_USED];

    fn on_change(index: &mut Index, change: &Change<'_, ServiceEntryInput>, _: &mut PodDirectory) {
        let key = change.key;
        let named = |entry: Option<&ServiceEntryInput>| -> Vec<IpNet> {
            entry
                .into_iter()
                .flat_map(|entry| entry.all_addresses())
                .collect()
        };
        index
            .view
            .addresses
            .update_named_addresses(key, &named(change.old), &named(change.new));
        let hosts = |entry: Option<&ServiceEntryInput>| -> Vec<ArcStr> {
            entry.map(|entry| entry.hosts.clone()).unwrap_or_default()
        };
        let (old, new) = (hosts(change.old), hosts(change.new));
        index.view.references.replace(
            ReferenceKind::ShortNameNamespace,
            key,
            short_names(&old),
            short_names(&new),
        );
        index.update_declared_hosts(key, old, new);
        index.mark_object_stale(key.clone());
        for entry in change.both_versions() {
            index.mark_selected_workloads_stale(&key.namespace, entry.selector.as_ref());
        }
        let bindings = |entry: Option<&ServiceEntryInput>| -> Vec<GatewayName> {
            entry
                .into_iter()
                .flat_map(|entry| entry.gateways())
                .collect()
        };
        let (old, new) = (bindings(change.old), bindings(change.new));
        if old != new {
            index.replace_gateways(key, old, new);
        }
        let own = |entry: Option<&ServiceEntryInput>| entry.and_then(|one| one.binding.clone());
        index.update_waypoint_label(key, own(change.old).as_ref(), own(change.new).as_ref());
        index.mark_attached_objects_stale(key);
        index.mark_provider_policies_stale();
    }

    fn render(view: &MeshView, key: &ObjectKey, entry: &ServiceEntryInput) -> RenderedRecords {
        RenderedRecords {
            workloads: workloads(view, key, entry),
            conflicts: conflicts(view, key, entry),
            ..RenderedRecords::default()
        }
    }

    fn derived_status(
        view: &MeshView,
        key: &ObjectKey,
        entry: &ServiceEntryInput,
    ) -> Option<DerivedStatus> {
        let attachment = view.waypoint_of_service(key);
        let hosts = view.owned_hosts(entry);
        let serving = hosts.flat_map(|host| view.waypoints_serving(key, host));
        Some(view.bound_status(attachment.as_ref(), &serving.collect()))
    }

    fn host_claim<'a>(
        view: &MeshView,
        entry: &'a ServiceEntryInput,
        host: &ArcStr,
    ) -> Option<HostClaim<'a>> {
        let visibility = view.visibility(entry, host)?;
        Some(HostClaim {
            is_kubernetes: false,
            created: &entry.created,
            is_public: visibility == Visibility::Public,
        })
    }

    fn service_record(
        view: &MeshView,
        entry: &ServiceEntryInput,
        host: &ArcStr,
    ) -> Option<ServiceRecord> {
        let distribution = namespace::traffic_distribution(view, &entry.namespace);
        let is_free = |net: &IpNet| address_owner(view, entry, net).is_none();
        let mut record = entry.build_record(host, &view.network, distribution, is_free);
        record.service.visibility = view.visibility(entry, host)?;
        let aliases = view.own_trust_domain_names();
        let is_published = |name: &ArcStr| {
            !names_another_namespace(name, &entry.namespace, &view.config, |td| {
                aliases.contains(td)
            })
        };
        record.service.subject_alt_names.retain(is_published);
        Some(record)
    }
}

fn is_prefix(net: &IpNet) -> bool {
    net.prefix_len() != net.max_prefix_len()
}

/// Returns the Service or pod because of which an address of an entry is not published. For a prefix, proxies exclude
/// the addresses that Services and pods own; they cannot exclude pods with their node's address. A prefix with pods of
/// other namespaces is therefore published only if connections keep their original destination (resolution `NONE`).
fn address_owner<'a>(
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

/// Returns the text of the note on an address that is not published, or on a prefix that proxies apply only in part;
/// `None` if no Service or pod owns an address of it.
fn address_conflict(view: &MeshView, entry: &ServiceEntryInput, net: &IpNet) -> Option<String> {
    let taken = address_owner(view, entry, net);
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

/// Builds the notes on parts of an entry that have no effect because of other objects, or of the MeshConfig.
fn conflicts(view: &MeshView, key: &ObjectKey, entry: &ServiceEntryInput) -> Vec<Note> {
    let endpoints = entry.endpoints.iter().enumerate();
    let endpoints = endpoints.filter_map(|(number, endpoint)| {
        let field = format!("spec.endpoints[{number}].address");
        workload_entry::address_conflict_note(view, &field, endpoint)
    });
    let taken = entry.addresses().filter_map(|(field, net)| {
        let message = address_conflict(view, entry, net)?;
        Some(Note::new(field.clone(), message))
    });
    endpoints
        .chain(taken)
        .chain(unserved_wildcard_note(view, key, entry))
        .chain(visibility_notes(view, entry))
        .collect()
}

/// Builds the notes on hosts that are not published, or visible in fewer namespaces than `exportTo` requests.
fn visibility_notes(view: &MeshView, entry: &ServiceEntryInput) -> Vec<Note> {
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
    let export = view.exported_to(entry);
    if entry.export_to.is_some_and(|requested| requested > export) {
        let message = format!(
            "entries of {own} are seen in {own} alone, as long as meshConfig.defaultServiceExportTo of the \
             {} does not have \"*\"",
            view.settings_key()
        );
        notes.push(Note::new("spec.exportTo", message));
    }
    let is_narrowed = |host: &&ArcStr| {
        export == ExportTo::All && view.visibility(entry, host) == Some(Visibility::Namespace)
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

/// Builds the note on wildcard hosts with the resolution `DYNAMIC_DNS` that no waypoint serves: connections to them are
/// refused.
fn unserved_wildcard_note(
    view: &MeshView,
    key: &ObjectKey,
    entry: &ServiceEntryInput,
) -> Option<Note> {
    if !entry
        .hosts
        .iter()
        .any(|host| entry.resolves_requested_names(host))
    {
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
    let hosts: BTreeSet<&ArcStr> = view.owned_hosts(entry).collect();
    let uid = |address: &str| {
        view.workload_uid(&format!(
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
                    services: [(name, entry.target_ports_by_name(&BTreeMap::new()))].into(),
                    ..view.base_workload(&key.namespace, &key.name)
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
                .map(|host| (name(host), entry.target_ports_by_name(&endpoint.ports)))
                .collect();
            workload_of_endpoint(
                view,
                objects,
                key,
                uid(&endpoint.address_text),
                endpoint,
                services,
            )
        })
        .collect()
}

impl ServiceEntryInput {
    /// Builds the service record of one host, with the addresses that `is_free` accepts and without the fields that
    /// depend on other objects: `canonical` and `visibility`.
    pub(crate) fn build_record(
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
                    .map(|port| (port.number, port.target_port.unwrap_or(port.number)))
                    .collect(),
                subject_alt_names: self.subject_alt_names.clone(),
                load_balancing: if self.resolution == Resolution::None {
                    Some(passthrough)
                } else {
                    load_balancing(
                        false,
                        self.traffic_distribution
                            .as_deref()
                            .or(namespace_distribution),
                        HealthPolicy::OnlyHealthy,
                    )
                },
                ..model::Service::default()
            },
        }
    }
}
