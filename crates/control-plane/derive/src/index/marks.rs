//! Marks records as stale after changes that affect several kinds of objects.

use std::collections::{BTreeMap, BTreeSet};

use ambit_k8s_api::{
    AuthorizationPolicy, EndpointSlice, Gateway, Kind, ObjectKey, Pod, Service, ServiceEntry,
    WorkloadEntry, revisions::ControlPlane,
};
use ambit_model::{ArcStr, GatewayName};

use crate::{
    config::WaypointAttachment,
    index::{Index, render_unit::RenderUnit},
    labels::{Labels, selects},
    objects::binding::{CanaryWaypoint, WaypointSelection},
    relations::{references::ReferenceKind, workload_waypoints::PolicyScope},
};

impl Index {
    /// Marks the records of one object as stale.
    pub(crate) fn mark_object_stale(&mut self, key: ObjectKey) {
        self.stale_units.insert(RenderUnit::Object(key));
    }

    /// Marks the records of a host as stale, and those of the objects that depend on it.
    pub(crate) fn mark_host_stale(&mut self, host: ArcStr) {
        let objects_declaring: Vec<_> = self.view.objects_declaring(&host).cloned().collect();
        for object in &objects_declaring {
            let policies = self
                .view
                .references
                .referrers(ReferenceKind::PolicyTarget, object)
                .cloned();
            let routes = self
                .view
                .references
                .referrers(ReferenceKind::RouteParent, object)
                .cloned();
            self.stale_units
                .extend(policies.chain(routes).map(RenderUnit::Object));
            self.mark_attached_telemetry_stale(object);
            self.mark_route_backends_stale(object);
        }
        self.mark_routes_to_host_stale(&host);
        self.mark_host_rules_stale(&host);
        self.mark_host_callers_stale(&host);
        self.mark_narrower_hosts_stale(&host);
        self.mark_only_host_stale(host);
    }

    /// Marks the records of a host as stale, without the objects that depend on it.
    pub(crate) fn mark_only_host_stale(&mut self, host: ArcStr) {
        self.stale_units.insert(RenderUnit::Host(host));
    }

    /// Marks as stale the hosts that an object declares, and the objects that depend on them.
    pub(crate) fn mark_object_hosts_stale(&mut self, key: &ObjectKey) {
        for host in self.view.hosts_of(key) {
            self.mark_host_stale(host);
        }
    }

    /// Marks as stale the hosts that all objects of a namespace declare, and the objects that depend on them.
    pub(crate) fn mark_namespace_hosts_stale(&mut self, namespace: &ArcStr) {
        let Some(objects) = self.view.namespaces.get(namespace) else {
            return;
        };
        let key =
            |kind: Kind| move |name: &ArcStr| ObjectKey::new(kind, namespace.clone(), name.clone());
        let services = objects
            .all_of_kind::<Service>()
            .keys()
            .map(key(Kind::Service));
        let entries = objects.all_of_kind::<ServiceEntry>().keys();
        let all: Vec<_> = services
            .chain(entries.map(key(Kind::ServiceEntry)))
            .collect();
        for key in &all {
            self.mark_object_hosts_stale(key);
        }
    }

    /// Marks as stale the policies and routes attached to a Service or ServiceEntry, and routes that send traffic to
    /// it, but not its own records.
    pub(crate) fn mark_attached_objects_stale(&mut self, key: &ObjectKey) {
        let policies = self
            .view
            .references
            .referrers(ReferenceKind::PolicyTarget, key)
            .cloned();
        let routes = self
            .view
            .references
            .referrers(ReferenceKind::RouteParent, key)
            .cloned();
        let all = policies.chain(routes);
        self.stale_units.extend(all.map(RenderUnit::Object));
        self.mark_backend_routes_stale(key);
    }

    /// Marks as stale the routes that have a Service as backend, and the hosts that these routes apply to.
    pub(crate) fn mark_backend_routes_stale(&mut self, key: &ObjectKey) {
        let routes = self
            .view
            .references
            .referrers(ReferenceKind::RouteBackend, key)
            .cloned();
        self.stale_units.extend(routes.map(RenderUnit::Object));
        self.mark_parent_hosts_stale(key);
    }

    /// Marks as stale the objects that may get another waypoint after a change of a Gateway or its class.
    pub(crate) fn mark_gateway_dependents_stale(&mut self, name: &GatewayName, class: &ArcStr) {
        let GatewayName {
            namespace,
            name: of,
        } = name;
        let key = ObjectKey::new(Kind::Gateway, namespace.clone(), of.clone());
        let class = ObjectKey::new(Kind::GatewayClass, "", class.clone());
        for target in [&key, &class] {
            let policies = self
                .view
                .references
                .referrers(ReferenceKind::PolicyTarget, target)
                .cloned();
            self.stale_units.extend(policies.map(RenderUnit::Object));
        }
        self.mark_object_stale(key);
        let canaries = self
            .view
            .references
            .referrers(ReferenceKind::CanaryWaypoint, name);
        let bound: Vec<_> = self
            .view
            .references
            .referrers(ReferenceKind::Waypoint, name)
            .chain(canaries)
            .cloned()
            .collect();
        for key in bound {
            self.mark_waypoint_dependents_stale(key);
        }
        self.mark_previous_waypoint_users_stale(name);
        // Its own Service has no waypoint, and only its own pods are endpoints of it.
        let service = ObjectKey::new(Kind::Service, namespace.clone(), of.clone());
        self.mark_object_hosts_stale(&service);
        let selector = self.view.get::<Service>(&service);
        let selector = selector.and_then(|service| service.selector.clone());
        self.mark_selected_workloads_stale(namespace, selector.as_ref());
        self.mark_gateway_pods_stale(name);
        self.mark_tls_hosts_stale();
        let served: Vec<_> = self
            .view
            .service_waypoints
            .keys_at_waypoint(name)
            .map(|one| one.hostname.clone())
            .collect();
        for host in served {
            self.mark_host_stale(host);
        }
        if self.view.config.waypoint_attachment == WaypointAttachment::LabelsAndGateways {
            self.mark_namespace_workloads_stale(namespace);
            self.mark_namespace_hosts_stale(namespace);
        }
    }

    /// Marks every Gateway as stale, without the objects that are attached to it.
    pub(crate) fn mark_all_gateways_stale(&mut self) {
        let key = |namespace: &ArcStr, name: &ArcStr| {
            ObjectKey::new(Kind::Gateway, namespace.clone(), name.clone())
        };
        let gateways = self
            .view
            .namespaces
            .iter()
            .flat_map(|(namespace, objects)| {
                let names = objects.all_of_kind::<Gateway>().keys();
                names.map(move |name| RenderUnit::Object(key(namespace, name)))
            });
        self.stale_units.extend(gateways);
    }

    /// Marks the Gateways of a namespace, and the objects that depend on them, as stale.
    pub(crate) fn mark_namespace_gateways_stale(&mut self, namespace: &ArcStr) {
        let Some(objects) = self.view.namespaces.get(namespace) else {
            return;
        };
        let gateways = objects.all_of_kind::<Gateway>().values();
        let gateways = gateways.map(|one| (one.name.clone(), one.class.clone()));
        for (name, class) in gateways.collect::<Vec<_>>() {
            self.mark_gateway_dependents_stale(&name, &class);
        }
    }

    /// Updates a control plane of the mesh, which was added, changed or removed, and marks as stale all Gateways: their
    /// revisions may now belong to this mesh, or to another implementation.
    pub(crate) fn update_control_plane(&mut self, service: &str, of: Option<ControlPlane>) {
        if self.view.revisions.set_control_plane(service, of) {
            let namespaces: Vec<_> = self.view.namespaces.keys().cloned().collect();
            for namespace in &namespaces {
                self.mark_namespace_gateways_stale(namespace);
            }
        }
    }

    /// Marks as stale the Gateway that has the name of a Service, which was created, changed or deleted.
    pub(crate) fn mark_service_gateway_stale(&mut self, service: &ObjectKey) {
        let (namespace, name) = (service.namespace.clone(), service.name.clone());
        let key = ObjectKey::new(Kind::Gateway, namespace.clone(), name.clone());
        let class = self.view.get::<Gateway>(&key).map(|one| one.class.clone());
        if let Some(class) = class {
            self.mark_gateway_dependents_stale(&GatewayName::new(namespace, name), &class);
        }
    }

    /// Marks as stale the records that depend on the waypoint of an object.
    pub(crate) fn mark_waypoint_dependents_stale(&mut self, key: ObjectKey) {
        match key.kind {
            Kind::Namespace => {
                self.mark_namespace_workloads_stale(&key.name);
                self.mark_namespace_hosts_stale(&key.name);
            }
            Kind::Service => self.mark_object_hosts_stale(&key),
            _ => {
                self.mark_object_hosts_stale(&key);
                self.mark_object_stale(key);
            }
        }
    }

    /// Records whether a pod has its own label for a waypoint: services of a namespace with such a pod have no common
    /// waypoint for their endpoints.
    pub(crate) fn update_pod_waypoint_label(&mut self, pod: &ObjectKey, chooses: bool) {
        let namespace = &pod.namespace;
        let had_any = self.view.has_pods_with_waypoint_label(namespace);
        let new = chooses.then(|| namespace.clone());
        self.view.references.replace(
            ReferenceKind::PodWaypointLabel,
            pod,
            [namespace.clone()],
            new,
        );
        if had_any != self.view.has_pods_with_waypoint_label(namespace) {
            self.mark_namespace_hosts_stale(namespace);
        }
    }

    /// Updates the waypoint that the labels of an object select.
    pub(crate) fn update_binding(
        &mut self,
        key: &ObjectKey,
        old: Option<&WaypointSelection>,
        new: Option<&WaypointSelection>,
    ) {
        let gateway = |binding: Option<&WaypointSelection>| {
            binding.and_then(WaypointSelection::gateway).cloned()
        };
        if old != new {
            self.update_waypoint_label(key, old, new);
            self.replace_gateways(key, gateway(old), gateway(new));
            self.mark_provider_policies_stale();
        }
    }

    /// Replaces the Gateways that an object is attached to, and marks these Gateways, whose notes depend on attached
    /// objects.
    pub(crate) fn replace_gateways(
        &mut self,
        key: &ObjectKey,
        old: impl IntoIterator<Item = GatewayName> + Clone,
        new: impl IntoIterator<Item = GatewayName> + Clone,
    ) {
        self.view
            .references
            .replace(ReferenceKind::Waypoint, key, old.clone(), new.clone());
        self.mark_gateways_stale(old.into_iter().chain(new));
    }

    /// Marks as stale the given Gateways, without the objects that are attached to them.
    fn mark_gateways_stale(&mut self, names: impl IntoIterator<Item = GatewayName>) {
        for name in names {
            self.mark_object_stale(ObjectKey::new(Kind::Gateway, name.namespace, name.name));
        }
    }

    /// Updates the canary waypoint that the labels of an object select.
    pub(crate) fn update_canary(
        &mut self,
        key: &ObjectKey,
        old: Option<&CanaryWaypoint>,
        new: Option<&CanaryWaypoint>,
    ) {
        let gateway = |canary: Option<&CanaryWaypoint>| canary.map(|canary| canary.gateway.clone());
        if old != new {
            self.view.references.replace(
                ReferenceKind::CanaryWaypoint,
                key,
                gateway(old),
                gateway(new),
            );
            self.mark_gateways_stale(gateway(old).into_iter().chain(gateway(new)));
        }
    }

    /// Marks as stale the policies of node proxies that apply to the pods of a scope.
    pub(crate) fn mark_policies_in_scope_stale(&mut self, scope: &PolicyScope) {
        let namespaces = match scope {
            PolicyScope::Policy(name) => {
                if let Some((namespace, name)) = name.split_once('/') {
                    self.mark_object_stale(ObjectKey::new(
                        Kind::AuthorizationPolicy,
                        namespace,
                        name,
                    ));
                }
                return;
            }
            PolicyScope::Namespace(namespace) => [namespace, &self.view.config.root_namespace],
        };
        let mut keys = Vec::new();
        for namespace in namespaces {
            let policies = self
                .view
                .objects(namespace)
                .map(|all| all.all_of_kind::<AuthorizationPolicy>());
            let names = policies.into_iter().flat_map(BTreeMap::keys);
            let key = |name: &ArcStr| {
                ObjectKey::new(Kind::AuthorizationPolicy, namespace.clone(), name.clone())
            };
            keys.extend(names.map(key).map(RenderUnit::Object));
        }
        self.stale_units.extend(keys);
    }

    /// Marks the shared policy that refuses all plaintext (STRICT) as stale.
    pub(crate) fn mark_strict_policy_stale(&mut self) {
        self.stale_units.insert(RenderUnit::StaticStrictPolicy);
    }

    /// Marks as stale the records of ServiceEntries and WorkloadEntries, for example because an address that they name
    /// has another owner now.
    pub(crate) fn mark_entries_stale(&mut self, entries: BTreeSet<ObjectKey>) {
        for key in entries {
            if key.kind == Kind::ServiceEntry {
                let entry = self.view.get::<ServiceEntry>(&key);
                let hosts = entry.map(|entry| entry.hosts.clone());
                for host in hosts.into_iter().flatten() {
                    self.mark_host_stale(host);
                }
            }
            self.mark_object_stale(key);
        }
    }

    /// Marks as stale the pods and WorkloadEntries of a namespace that a label selector matches.
    pub(crate) fn mark_selected_workloads_stale(
        &mut self,
        namespace: &ArcStr,
        selector: Option<&Labels>,
    ) {
        let (Some(selector), Some(objects)) = (selector, self.view.namespaces.get(namespace))
        else {
            return;
        };
        let key = |kind, name: &ArcStr| {
            RenderUnit::Object(ObjectKey::new(kind, namespace.clone(), name.clone()))
        };
        let pods = objects.all_of_kind::<Pod>().iter();
        let pods = pods.filter(|(_, pod)| selects(selector, &pod.labels));
        let entries = objects.all_of_kind::<WorkloadEntry>().iter();
        let entries = entries.filter(|(_, entry)| selects(selector, &entry.endpoint.labels));
        self.stale_units
            .extend(pods.map(|(name, _)| key(Kind::Pod, name)));
        self.stale_units
            .extend(entries.map(|(name, _)| key(Kind::WorkloadEntry, name)));
    }

    /// Marks as stale the ServiceEntries of a namespace with inline endpoints, which are workloads that policies may
    /// select.
    pub(crate) fn mark_inline_endpoints_stale(&mut self, namespace: &ArcStr) {
        let Some(objects) = self.view.namespaces.get(namespace) else {
            return;
        };
        let entries = objects.all_of_kind::<ServiceEntry>().iter();
        let with_endpoints = entries.filter(|(_, entry)| !entry.endpoints.is_empty());
        let keys = with_endpoints.map(|(name, _)| {
            RenderUnit::Object(ObjectKey::new(
                Kind::ServiceEntry,
                namespace.clone(),
                name.clone(),
            ))
        });
        self.stale_units.extend(keys);
    }

    /// Marks as stale the records of all workloads of a namespace.
    pub(crate) fn mark_namespace_workloads_stale(&mut self, namespace: &ArcStr) {
        let Some(objects) = self.view.namespaces.get(namespace) else {
            return;
        };
        let key = |kind: Kind| {
            move |name: &ArcStr| {
                RenderUnit::Object(ObjectKey::new(kind, namespace.clone(), name.clone()))
            }
        };
        let pods = objects.all_of_kind::<Pod>().keys();
        self.stale_units.extend(pods.map(key(Kind::Pod)));
        let workload_entries = objects.all_of_kind::<WorkloadEntry>().keys();
        self.stale_units
            .extend(workload_entries.map(key(Kind::WorkloadEntry)));
        let service_entries = objects.all_of_kind::<ServiceEntry>().keys();
        self.stale_units
            .extend(service_entries.map(key(Kind::ServiceEntry)));
        let slices = objects.all_of_kind::<EndpointSlice>().keys();
        self.stale_units
            .extend(slices.map(key(Kind::EndpointSlice)));
    }

    /// Marks as stale the records of all workloads and all hosts.
    pub(crate) fn mark_entire_mesh_stale(&mut self) {
        let hosts = self
            .view
            .references
            .referenced_names(ReferenceKind::DeclaredHost)
            .cloned();
        let hosts = hosts.map(RenderUnit::Host);
        self.stale_units.extend(hosts);
        self.mark_all_workloads_stale();
    }

    /// Marks as stale the records of all workloads.
    pub(crate) fn mark_all_workloads_stale(&mut self) {
        let namespaces: Vec<_> = self.view.namespaces.keys().cloned().collect();
        for namespace in &namespaces {
            self.mark_namespace_workloads_stale(namespace);
        }
    }
}
