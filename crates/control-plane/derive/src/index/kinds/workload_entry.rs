//! Workload entries: each is a workload outside Kubernetes; and the endpoints that service entries list, which
//! are written alike.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ambit_k8s_api::{
    ObjectKey, Service, ServiceEntry, WorkloadEntry, is_dns_name, istio::WorkloadEntrySpec, labels,
};
use ambit_model::{
    ArcStr, Locality, NamespacedHostname, NetworkMode, Protocol, Workload, WorkloadUid,
};
use ipnet::IpNet;

use super::{Objects, authorization_policy::policies_for};
use crate::{
    Labels, MeshConfig, PodDirectory,
    condition::{BOUND_ENTRY, ConditionType, Standing, USED},
    index::{
        Binding, Index, MeshView, Obstacle, Origin, Services, canonical,
        kind::{Change, Extent, Followed, MeshKind, Read, Rendered},
    },
    problem::{FieldError, Note},
    selects,
};

impl Followed for WorkloadEntry {
    const EXTENT: Extent = Extent::Whole { labels: None };
}

impl MeshKind for WorkloadEntry {
    type Input = WorkloadEntryInput;

    const CONDITIONS: &'static [ConditionType] = &[BOUND_ENTRY, USED];

    fn read(&self, _: &MeshConfig) -> Result<Read<WorkloadEntryInput>, FieldError> {
        WorkloadEntryInput::read(self).map(Read::plain)
    }

    fn changed(index: &mut Index, change: &Change<'_, WorkloadEntryInput>, _: &mut PodDirectory) {
        let named = |entry: Option<&WorkloadEntryInput>| -> Vec<IpNet> {
            let ip = entry.and_then(|entry| entry.endpoint.ip());
            ip.map(IpNet::from).into_iter().collect()
        };
        let key = change.key;
        index
            .view
            .addresses
            .name(key, &named(change.old), &named(change.new));
        let binding = |entry: Option<&WorkloadEntryInput>| {
            entry.and_then(|entry| Binding::of(&entry.endpoint.labels, &entry.namespace))
        };
        let (old, new) = (binding(change.old), binding(change.new));
        index.bind(key, old.as_ref(), new.as_ref());
        let labels =
            |entry: Option<&WorkloadEntryInput>| entry.map(|entry| entry.endpoint.labels.clone());
        let (before, after) = (labels(change.old), labels(change.new));
        index.mark_subsets(&key.namespace, before.as_ref(), after.as_ref());
        for entry in change.both() {
            index.mark_gateway_of_account(&key.namespace, &entry.endpoint.service_account);
        }
        index.mark(key.clone());
    }

    fn standing(view: &MeshView, key: &ObjectKey, entry: &WorkloadEntryInput) -> Option<Standing> {
        let labels = &entry.endpoint.labels;
        let attachment = view.waypoint_of_workload(key, labels, None);
        // A waypoint for services that only its namespace names is no problem.
        let attachment = attachment
            .filter(|one| one.origin == Origin::Own || one.outcome != Err(Obstacle::NotServed));
        Some(view.bound(attachment.as_ref(), &BTreeSet::new()))
    }

    fn render(view: &MeshView, key: &ObjectKey, entry: &WorkloadEntryInput) -> Rendered {
        Rendered {
            workloads: workload(view, key, entry).into_iter().collect(),
            conflicts: conflict(view, "spec.address", &entry.endpoint)
                .into_iter()
                .collect(),
            ..Rendered::default()
        }
    }
}

/// The pod whose address an endpoint outside Kubernetes names.
fn pod_at<'a>(view: &'a MeshView, endpoint: &EndpointInput) -> Option<&'a ObjectKey> {
    let is_here = endpoint
        .network
        .as_ref()
        .is_none_or(|network| *network == view.network);
    view.pod_at(&endpoint.ip().filter(|_| is_here)?)
}

/// The workload of an endpoint outside Kubernetes.
pub(super) fn workload_of_endpoint(
    view: &MeshView,
    objects: &Objects,
    key: &ObjectKey,
    uid: WorkloadUid,
    endpoint: &EndpointInput,
    services: Services,
) -> Workload {
    let (namespace, name) = (&key.namespace, &key.name);
    let workload_name = endpoint
        .labels
        .get(labels::WORKLOAD_NAME)
        .filter(|name| !name.is_empty())
        .map_or_else(|| name.clone(), ArcStr::from);
    let (canonical_name, canonical_revision) = canonical(&endpoint.labels, &workload_name);
    let base = view.base(namespace, name);
    // A pod's address stays the pod's: an entry that has it, too, is found through services only, and has no tunnel,
    // which would reach the pod under the identity of a waypoint.
    let is_pods = pod_at(view, endpoint).is_some();
    let native_tunnel = endpoint.native_tunnel && !is_pods;
    let mut workload = Workload {
        uid,
        workload_ips: match &endpoint.address {
            Address::Ip(ip) => vec![*ip],
            Address::Host(_) => Vec::new(),
        },
        hostname: match &endpoint.address {
            Address::Ip(_) => ArcStr::new(),
            Address::Host(host) => host.clone(),
        },
        network: endpoint
            .network
            .clone()
            .unwrap_or_else(|| base.network.clone()),
        protocol: if native_tunnel {
            Protocol::Hbone
        } else {
            Protocol::Tcp
        },
        native_tunnel,
        service_account: endpoint.service_account.clone(),
        workload_name,
        canonical_name,
        canonical_revision,
        network_mode: if is_pods {
            NetworkMode::HostNetwork
        } else {
            NetworkMode::Standard
        },
        authorization_policies: policies_for(view, namespace, objects, &endpoint.labels),
        locality: endpoint.locality.clone(),
        capacity: endpoint.capacity,
        services,
        ..base
    };
    let attachment = view.waypoint_of_workload(key, &endpoint.labels, None);
    view.attach(&mut workload, attachment.as_ref());
    workload
}

/// Whether the address of an endpoint is a pod's.
pub(super) fn conflict(view: &MeshView, field: &str, endpoint: &EndpointInput) -> Option<Note> {
    let pod = pod_at(view, endpoint)?;
    let message = format!(
        "{:?} is the address of {pod}: services have it as an endpoint in plaintext, but the address itself stays the pod's",
        endpoint.text
    );
    Some(Note::new(field, message))
}

impl MeshView {
    /// How the workload of an entry is called in WDS.
    pub(super) fn uid_of_entry(&self, namespace: &str, name: &str) -> WorkloadUid {
        self.uid(&format!(
            "networking.istio.io/WorkloadEntry/{namespace}/{name}"
        ))
    }
}

fn workload(view: &MeshView, key: &ObjectKey, input: &WorkloadEntryInput) -> Option<Workload> {
    let objects = view.objects(&key.namespace)?;
    let endpoint = &input.endpoint;
    let mut services = Services::new();
    for service in objects.all::<Service>().values() {
        if service
            .selector
            .as_ref()
            .is_some_and(|selector| selects(selector, &endpoint.labels))
            && view.may_serve(&key.namespace, &service.name, None)
        {
            let host = service.hostname(&view.config.cluster_domain);
            let name = NamespacedHostname::new(key.namespace.clone(), host);
            services.insert(name, service.targets_elsewhere(&endpoint.ports));
        }
    }
    for service in objects.all::<ServiceEntry>().values() {
        if service
            .selector
            .as_ref()
            .is_some_and(|selector| selects(selector, &endpoint.labels))
        {
            for host in view.hosts_won(service) {
                let name = NamespacedHostname::new(key.namespace.clone(), host.clone());
                services.insert(name, service.targets(&endpoint.ports));
            }
        }
    }
    let uid = view.uid_of_entry(&key.namespace, &key.name);
    Some(workload_of_endpoint(
        view, objects, key, uid, endpoint, services,
    ))
}

/// Where an endpoint can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Ip(IpAddr),
    Host(ArcStr),
}

/// One workload outside Kubernetes, of a WorkloadEntry or inside of a ServiceEntry.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EndpointInput {
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

impl EndpointInput {
    /// The address that it names.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        match self.address {
            Address::Ip(ip) => Some(ip),
            Address::Host(_) => None,
        }
    }

    pub(super) fn read(
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

pub(super) fn port_number(port: u32) -> Result<u16, String> {
    u16::try_from(port)
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| format!("{port} is not a port, 1 to 65535"))
}

/// Input of a WorkloadEntry.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WorkloadEntryInput {
    pub(crate) name: ArcStr,
    pub(crate) namespace: ArcStr,
    pub(crate) endpoint: EndpointInput,
}

impl WorkloadEntryInput {
    fn read(entry: &WorkloadEntry) -> Result<Self, FieldError> {
        Ok(Self {
            name: entry.metadata.name.as_deref().unwrap_or_default().into(),
            namespace: entry
                .metadata
                .namespace
                .as_deref()
                .unwrap_or("default")
                .into(),
            endpoint: EndpointInput::read(&entry.spec, entry.metadata.labels.as_ref(), "spec")?,
        })
    }
}
