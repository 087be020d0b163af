//! Workload records of pods.

use std::net::IpAddr;

use ambit_k8s_api::{
    EndpointSlice, Kind, Namespace, ObjectKey, Pod, Service, ServiceEntry, enablement, labels,
};
use ambit_model::{
    ArcStr, NamespacedHostname, NetworkMode, Protocol, Workload, WorkloadStatus, WorkloadUid,
};

use crate::{
    index::{Index, change::Change},
    kinds::{authorization_policy::policy_names_for, kind::MeshKind, node},
    labels::{Labels, selects},
    objects::{Objects, binding::WaypointSelection, pod::PodInput},
    pod_directory::{PodDirectory, PodFacts},
    relations::references::ReferenceKind,
    view::{
        MeshView,
        rendered::RenderedRecords,
        workloads::{EndpointServices, canonical_name_and_revision},
    },
};

impl MeshKind for Pod {
    fn on_change(index: &mut Index, change: &Change<'_, PodInput>, pods: &mut PodDirectory) {
        let key = change.key;
        match change.new {
            Some(pod) => pods.insert(&key.namespace, &key.name, pod.facts(&index.view)),
            None => pods.remove(&key.namespace, &key.name),
        }
        let ips = |pod: Option<&PodInput>| -> Vec<IpAddr> {
            let published = pod.filter(|pod| pod.is_published());
            published.map(|pod| pod.ips.clone()).unwrap_or_default()
        };
        let named_by =
            index
                .view
                .addresses
                .update_owned_addresses(key, &ips(change.old), &ips(change.new));
        index.mark_entries_stale(named_by);
        let hosts =
            |pod: Option<&PodInput>| pod.map(|pod| pod.host_ips.clone()).unwrap_or_default();
        if index
            .view
            .cluster_addresses
            .replace(&hosts(change.old), &hosts(change.new))
        {
            index.mark_all_gateways_stale();
        }
        let node = |pod: Option<&PodInput>| pod.map(|pod| pod.node.clone());
        index.view.references.replace(
            ReferenceKind::PodNode,
            key,
            node(change.old),
            node(change.new),
        );
        let binding = |pod: Option<&PodInput>| {
            pod.and_then(|pod| WaypointSelection::from_labels(&pod.labels, &pod.namespace))
        };
        let (old, new) = (binding(change.old), binding(change.new));
        index.update_binding(key, old.as_ref(), new.as_ref());
        let labels = |pod: Option<&'_ PodInput>| {
            let published = pod.filter(|pod| pod.is_published());
            published.map(|pod| pod.labels.clone())
        };
        let (before, after) = (labels(change.old), labels(change.new));
        index.mark_endpoint_subsets_stale(&key.namespace, before.as_ref(), after.as_ref());
        index.update_pod_waypoint_label(key, new.is_some());
        index.update_instance(change);
        index.update_foreign_proxies(change);
        index.mark_object_stale(key.clone());
    }

    fn render(view: &MeshView, key: &ObjectKey, pod: &PodInput) -> RenderedRecords {
        let objects = view.objects(&key.namespace);
        let objects = objects.filter(|_| pod.is_published());
        RenderedRecords {
            workloads: objects
                .map(|objects| workload(view, objects, key, pod))
                .into_iter()
                .collect(),
            ..RenderedRecords::default()
        }
    }
}

impl PodInput {
    /// Returns the uid of the pod's workload record.
    pub(crate) fn workload_uid(&self, view: &MeshView) -> WorkloadUid {
        view.workload_uid(&format!("/Pod/{}/{}", self.namespace, self.name))
    }

    /// Returns the facts about the pod for the [`PodDirectory`].
    pub(crate) fn facts(&self, view: &MeshView) -> PodFacts {
        let gateway = self.labels.get(labels::GATEWAY_NAME);
        PodFacts {
            uid: self.uid.clone(),
            service_account: self.service_account.clone(),
            node: self.node.clone(),
            is_live: !self.is_terminated,
            is_enrolled: self.is_enrolled(view),
            gateway: gateway.map(ArcStr::from),
            address: self.ips.first().copied(),
        }
    }

    /// Whether the pod belongs to the mesh: by the agent's rules, or because its annotation says that the agent
    /// captured it, which covers agents with other rules and pods that are leaving the mesh. Pods of excluded
    /// namespaces never do.
    fn is_enrolled(&self, view: &MeshView) -> bool {
        if view.is_excluded(&self.namespace) {
            return false;
        }
        let namespace = ObjectKey::new(Kind::Namespace, "", self.namespace.clone());
        let namespace = view.get::<Namespace>(&namespace);
        let none = Labels::new();
        let facts = enablement::PodFacts {
            namespace: &self.namespace,
            host_network: self.uses_host_network,
            labels: &self.labels,
            has_sidecar: self.has_sidecar,
        };
        let decision = view.config.enablement.decide_membership(
            facts,
            namespace.map_or(&none, |namespace| &namespace.labels),
        );
        decision.is_included() || (self.is_captured && !decision.is_never_included())
    }
}

fn workload(view: &MeshView, objects: &Objects, key: &ObjectKey, pod: &PodInput) -> Workload {
    let mut workload = workload_without_waypoint(view, objects, pod);
    // Pods in their node's network are never captured: no waypoint takes them by itself.
    let account = Some(&pod.service_account).filter(|_| !pod.uses_host_network);
    if !view.is_instance(pod) {
        let attachment = view.waypoint_of_workload(key, &pod.labels, account);
        view.set_workload_waypoint(&mut workload, attachment.as_ref());
        let rules = attachment.and_then(|attachment| view.waypoint_rules(&workload, &attachment));
        if let Some(waypoint) = &mut workload.endpoint_waypoint {
            waypoint.rules = rules;
        }
    }
    workload
}

fn workload_without_waypoint(view: &MeshView, objects: &Objects, pod: &PodInput) -> Workload {
    let (canonical_name, canonical_revision) =
        canonical_name_and_revision(&pod.labels, &pod.workload_name);
    let hbone = pod.is_captured || pod.has_native_tunnel;
    Workload {
        uid: pod.workload_uid(view),
        workload_ips: pod.ips.clone(),
        protocol: if hbone {
            Protocol::Hbone
        } else {
            Protocol::Tcp
        },
        native_tunnel: pod.has_native_tunnel,
        network_mode: if pod.uses_host_network {
            NetworkMode::HostNetwork
        } else {
            NetworkMode::Standard
        },
        service_account: pod.service_account.clone(),
        node: pod.node.clone(),
        workload_name: pod.workload_name.clone(),
        canonical_name,
        canonical_revision,
        authorization_policies: policy_names_for(view, &pod.namespace, objects, &pod.labels),
        status: if pod.is_ready || view.serves_while_terminating(pod) {
            WorkloadStatus::Healthy
        } else {
            WorkloadStatus::Unhealthy
        },
        application_tunnel: view.inbound_binding(pod),
        locality: node::locality(view, &pod.node),
        services: services(view, objects, pod),
        ..view.base_workload(&pod.namespace, &pod.name)
    }
}

/// Returns the services that the pod is an endpoint of, with their target ports.
fn services(view: &MeshView, objects: &Objects, pod: &PodInput) -> EndpointServices {
    let mut services = EndpointServices::new();
    for service in objects.all_of_kind::<Service>().values() {
        if service
            .selector
            .as_ref()
            .is_some_and(|selector| selects(selector, &pod.labels))
            && view.may_be_endpoint(&pod.namespace, &service.name, Some(pod))
        {
            let name = NamespacedHostname::new(
                pod.namespace.clone(),
                service.hostname(&view.config.cluster_domain),
            );
            services.insert(name, service.target_ports_in(pod));
        }
    }
    for entry in objects.all_of_kind::<ServiceEntry>().values() {
        if entry
            .selector
            .as_ref()
            .is_some_and(|selector| selects(selector, &pod.labels))
        {
            for host in view.owned_hosts(entry) {
                let name = NamespacedHostname::new(pod.namespace.clone(), host.clone());
                services.insert(name, entry.target_ports_in(pod));
            }
        }
    }
    // Slices made by hand, of services that select nothing themselves.
    for slice in objects.all_of_kind::<EndpointSlice>().values() {
        let names_it = slice.pods.iter().any(|endpoint| {
            endpoint.namespace == pod.namespace
                && endpoint.pod == pod.name
                && (endpoint.uid.is_empty() || endpoint.uid == pod.uid)
        });
        let service = objects
            .all_of_kind::<Service>()
            .get(&slice.service)
            .filter(|service| service.selector.is_none())
            .filter(|service| view.may_be_endpoint(&pod.namespace, &service.name, Some(pod)));
        if let (true, Some(service)) = (names_it, service) {
            let name = NamespacedHostname::new(
                pod.namespace.clone(),
                service.hostname(&view.config.cluster_domain),
            );
            services.insert(name, service.target_ports_by_name(&slice.ports));
        }
    }
    services
}
