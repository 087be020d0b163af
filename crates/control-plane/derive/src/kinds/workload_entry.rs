//! Workload records of WorkloadEntries, and of the endpoints in ServiceEntries, which have the same fields.

use std::collections::BTreeSet;

use ambit_k8s_api::{ObjectKey, Service, ServiceEntry, WorkloadEntry, labels};
use ambit_model::{ArcStr, NamespacedHostname, NetworkMode, Protocol, Workload, WorkloadUid};
use ipnet::IpNet;

use crate::{
    condition::{ConditionType, DerivedStatus, ENTRY_USED, WORKLOAD_ENTRY_WAYPOINT_BOUND},
    index::{Index, change::Change},
    kinds::{authorization_policy::policy_names_for, kind::MeshKind},
    labels::selects,
    objects::{
        Objects,
        binding::WaypointSelection,
        workload_entry::{EndpointAddress, EndpointInput, WorkloadEntryInput},
    },
    pod_directory::PodDirectory,
    problem::Note,
    view::{
        MeshView,
        attachment::{AttachmentError, AttachmentOrigin},
        rendered::RenderedRecords,
        workloads::{EndpointServices, canonical_name_and_revision},
    },
};

impl MeshKind for WorkloadEntry {
    const CONDITIONS: &'static [ConditionType] = &[WORKLOAD_ENTRY_WAYPOINT_BOUND, ENTRY_USED];

    fn on_change(index: &mut Index, change: &Change<'_, WorkloadEntryInput>, _: &mut PodDirectory) {
        let named = |entry: Option<&WorkloadEntryInput>| -> Vec<IpNet> {
            let ip = entry.and_then(|entry| entry.endpoint.ip());
            ip.map(IpNet::from).into_iter().collect()
        };
        let key = change.key;
        index
            .view
            .addresses
            .update_named_addresses(key, &named(change.old), &named(change.new));
        let binding = |entry: Option<&WorkloadEntryInput>| {
            entry.and_then(|entry| {
                WaypointSelection::from_labels(&entry.endpoint.labels, &entry.namespace)
            })
        };
        let (old, new) = (binding(change.old), binding(change.new));
        index.update_binding(key, old.as_ref(), new.as_ref());
        let labels =
            |entry: Option<&WorkloadEntryInput>| entry.map(|entry| entry.endpoint.labels.clone());
        let (before, after) = (labels(change.old), labels(change.new));
        index.mark_endpoint_subsets_stale(&key.namespace, before.as_ref(), after.as_ref());
        for entry in change.both_versions() {
            index.mark_account_gateway_stale(&key.namespace, &entry.endpoint.service_account);
        }
        index.mark_object_stale(key.clone());
    }

    fn derived_status(
        view: &MeshView,
        key: &ObjectKey,
        entry: &WorkloadEntryInput,
    ) -> Option<DerivedStatus> {
        let labels = &entry.endpoint.labels;
        let attachment = view.waypoint_of_workload(key, labels, None);
        // A waypoint for services that only its namespace names is no problem.
        let attachment = attachment.filter(|one| {
            one.origin == AttachmentOrigin::ObjectLabel
                || one.outcome != Err(AttachmentError::NotServed)
        });
        Some(view.bound_status(attachment.as_ref(), &BTreeSet::new()))
    }

    fn render(view: &MeshView, key: &ObjectKey, entry: &WorkloadEntryInput) -> RenderedRecords {
        RenderedRecords {
            workloads: workload(view, key, entry).into_iter().collect(),
            conflicts: address_conflict_note(view, "spec.address", &entry.endpoint)
                .into_iter()
                .collect(),
            ..RenderedRecords::default()
        }
    }
}

/// Returns the pod that owns the address of an endpoint in this cluster's network.
fn pod_at<'a>(view: &'a MeshView, endpoint: &EndpointInput) -> Option<&'a ObjectKey> {
    let is_here = endpoint
        .network
        .as_ref()
        .is_none_or(|network| *network == view.network);
    view.pod_at(&endpoint.ip().filter(|_| is_here)?)
}

/// Builds the workload record of an endpoint of a WorkloadEntry or ServiceEntry.
pub(crate) fn workload_of_endpoint(
    view: &MeshView,
    objects: &Objects,
    key: &ObjectKey,
    uid: WorkloadUid,
    endpoint: &EndpointInput,
    services: EndpointServices,
) -> Workload {
    let (namespace, name) = (&key.namespace, &key.name);
    let workload_name = endpoint
        .labels
        .get(labels::WORKLOAD_NAME)
        .filter(|name| !name.is_empty())
        .map_or_else(|| name.clone(), ArcStr::from);
    let (canonical_name, canonical_revision) =
        canonical_name_and_revision(&endpoint.labels, &workload_name);
    let base = view.base_workload(namespace, name);
    // A pod's address stays the pod's: an entry that has it, too, is found through services only, and has no tunnel,
    // which would reach the pod under the identity of a waypoint.
    let is_pods = pod_at(view, endpoint).is_some();
    let native_tunnel = endpoint.has_native_tunnel && !is_pods;
    let mut workload = Workload {
        uid,
        workload_ips: match &endpoint.address {
            EndpointAddress::Ip(ip) => vec![*ip],
            EndpointAddress::Host(_) => Vec::new(),
        },
        hostname: match &endpoint.address {
            EndpointAddress::Ip(_) => ArcStr::new(),
            EndpointAddress::Host(host) => host.clone(),
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
        authorization_policies: policy_names_for(view, namespace, objects, &endpoint.labels),
        locality: endpoint.locality.clone(),
        capacity: endpoint.capacity,
        services,
        ..base
    };
    let attachment = view.waypoint_of_workload(key, &endpoint.labels, None);
    view.set_workload_waypoint(&mut workload, attachment.as_ref());
    workload
}

/// Builds the note on an endpoint whose address belongs to a pod.
pub(crate) fn address_conflict_note(
    view: &MeshView,
    field: &str,
    endpoint: &EndpointInput,
) -> Option<Note> {
    let pod = pod_at(view, endpoint)?;
    let message = format!(
        "{:?} is the address of {pod}: services have it as an endpoint in plaintext, but the address itself stays the pod's",
        endpoint.address_text
    );
    Some(Note::new(field, message))
}

impl MeshView {
    /// Returns the uid of the workload record of a WorkloadEntry.
    pub(crate) fn uid_of_entry(&self, namespace: &str, name: &str) -> WorkloadUid {
        self.workload_uid(&format!(
            "networking.istio.io/WorkloadEntry/{namespace}/{name}"
        ))
    }
}

fn workload(view: &MeshView, key: &ObjectKey, input: &WorkloadEntryInput) -> Option<Workload> {
    let objects = view.objects(&key.namespace)?;
    let endpoint = &input.endpoint;
    let mut services = EndpointServices::new();
    for service in objects.all_of_kind::<Service>().values() {
        if service
            .selector
            .as_ref()
            .is_some_and(|selector| selects(selector, &endpoint.labels))
            && view.may_be_endpoint(&key.namespace, &service.name, None)
        {
            let host = service.hostname(&view.config.cluster_domain);
            let name = NamespacedHostname::new(key.namespace.clone(), host);
            services.insert(name, service.target_ports_by_name(&endpoint.ports));
        }
    }
    for service in objects.all_of_kind::<ServiceEntry>().values() {
        if service
            .selector
            .as_ref()
            .is_some_and(|selector| selects(selector, &endpoint.labels))
        {
            for host in view.owned_hosts(service) {
                let name = NamespacedHostname::new(key.namespace.clone(), host.clone());
                services.insert(name, service.target_ports_by_name(&endpoint.ports));
            }
        }
    }
    let uid = view.uid_of_entry(&key.namespace, &key.name);
    Some(workload_of_endpoint(
        view, objects, key, uid, endpoint, services,
    ))
}
