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
    pub(crate) fn mark_object(&mut self, key: ObjectKey) {
        self.stale.insert(RenderUnit::Object(key));
    }

    /// Marks the records of a host as stale, and those of the objects that depend on it.
    pub(crate) fn mark_host(&mut self, host: ArcStr) {
        let objects_declaring: Vec<_> = self.view.objects_declaring(&host).cloned().collect();
        for object in &objects_declaring {
            let policies = self
                .view
                .references
                .of(ReferenceKind::PolicyTarget, object)
                .cloned();
            let routes = self
                .view
                .references
                .of(ReferenceKind::RouteParent, object)
                .cloned();
            self.stale
                .extend(policies.chain(routes).map(RenderUnit::Object));
            self.mark_telemetry_of(object);
            self.mark_backends_of(object);
        }
        self.mark_routes_naming(&host);
        self.mark_rules_of(&host);
        self.mark_callers_of(&host);
        self.mark_narrower_hosts(&host);
        self.mark_only_host(host);
    }

    /// Marks the records of a host as stale, without the objects that depend on it.
    pub(crate) fn mark_only_host(&mut self, host: ArcStr) {
        self.stale.insert(RenderUnit::Host(host));
    }

    /// Marks as stale the hosts that an object declares, and the objects that depend on them.
    pub(crate) fn mark_hosts_of_object(&mut self, key: &ObjectKey) {
        for host in self.view.hosts_of(key) {
            self.mark_host(host);
        }
    }

    /// Marks as stale the hosts that all objects of a namespace declare, and the objects that depend on them.
    pub(crate) fn mark_hosts_of_namespace(&mut self, namespace: &ArcStr) {
        let Some(objects) = self.view.namespaces.get(namespace) else {
            return;
        };
        let key =
            |kind: Kind| move |name: &ArcStr| ObjectKey::new(kind, namespace.clone(), name.clone());
        let services = objects.all::<Service>().keys().map(key(Kind::Service));
        let entries = objects.all::<ServiceEntry>().keys();
        let all: Vec<_> = services
            .chain(entries.map(key(Kind::ServiceEntry)))
            .collect();
        for key in &all {
            self.mark_hosts_of_object(key);
        }
    }

    /// Marks as stale the policies and routes attached to a Service or ServiceEntry, and routes that send traffic to
    /// it, but not its own records.
    pub(crate) fn mark_attached_to(&mut self, key: &ObjectKey) {
        let policies = self
            .view
            .references
            .of(ReferenceKind::PolicyTarget, key)
            .cloned();
        let routes = self
            .view
            .references
            .of(ReferenceKind::RouteParent, key)
            .cloned();
        let all = policies.chain(routes);
        self.stale.extend(all.map(RenderUnit::Object));
        self.mark_routes_with_backend(key);
    }

    /// Marks as stale the routes that have a Service as backend, and the hosts that these routes apply to.
    pub(crate) fn mark_routes_with_backend(&mut self, key: &ObjectKey) {
        let routes = self
            .view
            .references
            .of(ReferenceKind::RouteBackend, key)
            .cloned();
        self.stale.extend(routes.map(RenderUnit::Object));
        self.mark_routes_to(key);
    }

    /// Marks as stale the objects that may get another waypoint after a change of a Gateway or its class.
    pub(crate) fn mark_gateway(&mut self, name: &GatewayName, class: &ArcStr) {
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
                .of(ReferenceKind::PolicyTarget, target)
                .cloned();
            self.stale.extend(policies.map(RenderUnit::Object));
        }
        self.mark_object(key);
        let canaries = self.view.references.of(ReferenceKind::Canary, name);
        let bound: Vec<_> = self
            .view
            .references
            .of(ReferenceKind::Bound, name)
            .chain(canaries)
            .cloned()
            .collect();
        for key in bound {
            self.mark_waypoint_dependents(key);
        }
        self.mark_objects_keeping(name);
        // Its own Service has no waypoint, and only its own pods are endpoints of it.
        let service = ObjectKey::new(Kind::Service, namespace.clone(), of.clone());
        self.mark_hosts_of_object(&service);
        let selector = self.view.get::<Service>(&service);
        let selector = selector.and_then(|service| service.selector.clone());
        self.mark_selected_workloads(namespace, selector.as_ref());
        self.mark_instances(name);
        self.mark_hosts_with_tls();
        let served: Vec<_> = self
            .view
            .service_waypoints
            .of(name)
            .map(|one| one.hostname.clone())
            .collect();
        for host in served {
            self.mark_host(host);
        }
        if self.view.config.waypoint_attachment == WaypointAttachment::Seed {
            self.mark_namespace(namespace);
            self.mark_hosts_of_namespace(namespace);
        }
    }

    /// Marks every Gateway as stale, without the objects that are attached to it.
    pub(crate) fn mark_gateways(&mut self) {
        let key = |namespace: &ArcStr, name: &ArcStr| {
            ObjectKey::new(Kind::Gateway, namespace.clone(), name.clone())
        };
        let gateways = self
            .view
            .namespaces
            .iter()
            .flat_map(|(namespace, objects)| {
                let names = objects.all::<Gateway>().keys();
                names.map(move |name| RenderUnit::Object(key(namespace, name)))
            });
        self.stale.extend(gateways);
    }

    /// Marks the Gateways of a namespace, and the objects that depend on them, as stale.
    pub(crate) fn mark_gateways_of(&mut self, namespace: &ArcStr) {
        let Some(objects) = self.view.namespaces.get(namespace) else {
            return;
        };
        let gateways = objects.all::<Gateway>().values();
        let gateways = gateways.map(|one| (one.name.clone(), one.class.clone()));
        for (name, class) in gateways.collect::<Vec<_>>() {
            self.mark_gateway(&name, &class);
        }
    }

    /// Updates a control plane of the mesh, which was added, changed or removed, and marks as stale all Gateways: their
    /// revisions may now belong to this mesh, or to another implementation.
    pub(crate) fn update_control_plane(&mut self, service: &str, of: Option<ControlPlane>) {
        if self.view.revisions.set(service, of) {
            let namespaces: Vec<_> = self.view.namespaces.keys().cloned().collect();
            for namespace in &namespaces {
                self.mark_gateways_of(namespace);
            }
        }
    }

    /// Marks as stale the Gateway that has the name of a Service, which was created, changed or deleted.
    pub(crate) fn mark_gateway_of(&mut self, service: &ObjectKey) {
        let (namespace, name) = (service.namespace.clone(), service.name.clone());
        let key = ObjectKey::new(Kind::Gateway, namespace.clone(), name.clone());
        let class = self.view.get::<Gateway>(&key).map(|one| one.class.clone());
        if let Some(class) = class {
            self.mark_gateway(&GatewayName::new(namespace, name), &class);
        }
    }

    /// Marks as stale the records that depend on the waypoint of an object.
    pub(crate) fn mark_waypoint_dependents(&mut self, key: ObjectKey) {
        match key.kind {
            Kind::Namespace => {
                self.mark_namespace(&key.name);
                self.mark_hosts_of_namespace(&key.name);
            }
            Kind::Service => self.mark_hosts_of_object(&key),
            _ => {
                self.mark_hosts_of_object(&key);
                self.mark_object(key);
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
            self.mark_hosts_of_namespace(namespace);
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
            self.relabel(key, old, new);
            self.replace_gateways(key, gateway(old), gateway(new));
            self.mark_users_of_providers();
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
            .replace(ReferenceKind::Bound, key, old.clone(), new.clone());
        self.mark_each_gateway(old.into_iter().chain(new));
    }

    /// Marks as stale the given Gateways, without the objects that are attached to them.
    fn mark_each_gateway(&mut self, names: impl IntoIterator<Item = GatewayName>) {
        for name in names {
            self.mark_object(ObjectKey::new(Kind::Gateway, name.namespace, name.name));
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
            self.view
                .references
                .replace(ReferenceKind::Canary, key, gateway(old), gateway(new));
            self.mark_each_gateway(gateway(old).into_iter().chain(gateway(new)));
        }
    }

    /// Marks as stale the policies of node proxies that apply to the pods of a scope.
    pub(crate) fn mark_policies(&mut self, scope: &PolicyScope) {
        let namespaces = match scope {
            PolicyScope::Policy(name) => {
                if let Some((namespace, name)) = name.split_once('/') {
                    self.mark_object(ObjectKey::new(Kind::AuthorizationPolicy, namespace, name));
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
                .map(|all| all.all::<AuthorizationPolicy>());
            let names = policies.into_iter().flat_map(BTreeMap::keys);
            let key = |name: &ArcStr| {
                ObjectKey::new(Kind::AuthorizationPolicy, namespace.clone(), name.clone())
            };
            keys.extend(names.map(key).map(RenderUnit::Object));
        }
        self.stale.extend(keys);
    }

    /// Marks the shared policy that refuses all plaintext (STRICT) as stale.
    pub(crate) fn mark_static_strict(&mut self) {
        self.stale.insert(RenderUnit::StaticStrict);
    }

    /// Marks as stale the records of ServiceEntries and WorkloadEntries, for example because an address that they name
    /// has another owner now.
    pub(crate) fn mark_entries(&mut self, entries: BTreeSet<ObjectKey>) {
        for key in entries {
            if key.kind == Kind::ServiceEntry {
                let entry = self.view.get::<ServiceEntry>(&key);
                let hosts = entry.map(|entry| entry.hosts.clone());
                for host in hosts.into_iter().flatten() {
                    self.mark_host(host);
                }
            }
            self.mark_object(key);
        }
    }

    /// Marks as stale the pods and WorkloadEntries of a namespace that a label selector matches.
    pub(crate) fn mark_selected_workloads(
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
        let pods = objects.all::<Pod>().iter();
        let pods = pods.filter(|(_, pod)| selects(selector, &pod.labels));
        let entries = objects.all::<WorkloadEntry>().iter();
        let entries = entries.filter(|(_, entry)| selects(selector, &entry.endpoint.labels));
        self.stale
            .extend(pods.map(|(name, _)| key(Kind::Pod, name)));
        self.stale
            .extend(entries.map(|(name, _)| key(Kind::WorkloadEntry, name)));
    }

    /// Marks as stale the ServiceEntries of a namespace with inline endpoints, which are workloads that policies may
    /// select.
    pub(crate) fn mark_endpoints_of_entries(&mut self, namespace: &ArcStr) {
        let Some(objects) = self.view.namespaces.get(namespace) else {
            return;
        };
        let entries = objects.all::<ServiceEntry>().iter();
        let with_endpoints = entries.filter(|(_, entry)| !entry.endpoints.is_empty());
        let keys = with_endpoints.map(|(name, _)| {
            RenderUnit::Object(ObjectKey::new(
                Kind::ServiceEntry,
                namespace.clone(),
                name.clone(),
            ))
        });
        self.stale.extend(keys);
    }

    /// Marks as stale the records of all workloads of a namespace.
    pub(crate) fn mark_namespace(&mut self, namespace: &ArcStr) {
        let Some(objects) = self.view.namespaces.get(namespace) else {
            return;
        };
        let key = |kind: Kind| {
            move |name: &ArcStr| {
                RenderUnit::Object(ObjectKey::new(kind, namespace.clone(), name.clone()))
            }
        };
        let pods = objects.all::<Pod>().keys();
        self.stale.extend(pods.map(key(Kind::Pod)));
        let workload_entries = objects.all::<WorkloadEntry>().keys();
        self.stale
            .extend(workload_entries.map(key(Kind::WorkloadEntry)));
        let service_entries = objects.all::<ServiceEntry>().keys();
        self.stale
            .extend(service_entries.map(key(Kind::ServiceEntry)));
        let slices = objects.all::<EndpointSlice>().keys();
        self.stale.extend(slices.map(key(Kind::EndpointSlice)));
    }

    /// Marks as stale the records of all workloads and all hosts.
    pub(crate) fn mark_mesh(&mut self) {
        let hosts = self.view.references.names(ReferenceKind::Declares).cloned();
        let hosts = hosts.map(RenderUnit::Host);
        self.stale.extend(hosts);
        self.mark_workloads();
    }

    /// Marks as stale the records of all workloads.
    pub(crate) fn mark_workloads(&mut self) {
        let namespaces: Vec<_> = self.view.namespaces.keys().cloned().collect();
        for namespace in &namespaces {
            self.mark_namespace(namespace);
        }
    }
}
