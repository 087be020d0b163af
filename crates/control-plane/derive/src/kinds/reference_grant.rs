//! ReferenceGrants permit three things to other namespaces: routes with this namespace's services as backends, calls by
//! waypoints to these services on behalf of other namespaces' objects, and policies of other namespaces' Services and
//! ServiceEntries that apply to requests to this namespace's pods, if the pods are their endpoints.

use std::collections::BTreeSet;

use ambit_k8s_api::{Kind, ObjectKey, RateLimit, ReferenceGrant, WasmPlugin};
use ambit_model::{ArcStr, NamespacedHostname, PodGrant};

use crate::{
    config::ReferenceGrants,
    index::{Index, change::Change},
    kinds::kind::MeshKind,
    objects::reference_grant::{CALLING_KINDS, ReferenceGrantInput},
    pod_directory::PodDirectory,
    relations::references::ReferenceKind,
    view::MeshView,
};

impl MeshKind for ReferenceGrant {
    fn on_change(
        index: &mut Index,
        change: &Change<'_, ReferenceGrantInput>,
        _: &mut PodDirectory,
    ) {
        let namespace = &change.key.namespace;
        let names_pods = change
            .new
            .is_some_and(|grant| !grant.granted_pods.is_empty());
        index
            .view
            .references
            .set_mesh_reference(ReferenceKind::PodGrant, change.key, names_pods);
        if change
            .both_versions()
            .any(|grant| !grant.granted_pods.is_empty())
        {
            // Whether the rules of their waypoint are known depends on it.
            index.mark_namespace_workloads_stale(namespace);
        }
        let attached = change.both_versions().flat_map(|grant| &grant.pod_grantees);
        let attached: BTreeSet<ArcStr> = attached.map(|(_, of)| of.clone()).collect();
        for of in &attached {
            index.mark_namespace_hosts_stale(of);
        }
        let services: Vec<ObjectKey> = index
            .view
            .references
            .referenced_names(ReferenceKind::RouteBackend)
            .filter(|service: &&ObjectKey| service.namespace == *namespace)
            .filter(|service| {
                change
                    .both_versions()
                    .any(|grant| grant.permits_service(&service.name))
            })
            .cloned()
            .collect();
        let is_covered = |host: &&ArcStr| {
            index.view.objects_declaring(host).any(|key| {
                key.kind == Kind::Service
                    && key.namespace == *namespace
                    && change
                        .both_versions()
                        .any(|grant| grant.permits_service(&key.name))
            })
        };
        let hosts = index
            .view
            .references
            .referenced_names(ReferenceKind::RouteHost)
            .filter(is_covered);
        let hosts: Vec<ArcStr> = hosts.cloned().collect();
        for service in services {
            index.mark_backend_routes_stale(&service);
        }
        for host in hosts {
            index.mark_routes_to_host_stale(&host);
        }
        let from = change.both_versions().flat_map(|grant| &grant.referrers);
        let from: BTreeSet<_> = from
            .filter(|(kind, _)| CALLING_KINDS.contains(kind))
            .collect();
        let callers: Vec<ObjectKey> = from
            .into_iter()
            .flat_map(|(kind, namespace)| index.view.calling_objects(*kind, namespace))
            .collect();
        for caller in callers {
            index.mark_object_stale(caller);
        }
    }
}

impl MeshView {
    /// Returns the objects of a kind and namespace on whose behalf waypoints make calls.
    fn calling_objects(&self, kind: Kind, namespace: &ArcStr) -> Vec<ObjectKey> {
        let Some(objects) = self.objects(namespace) else {
            return Vec::new();
        };
        let names: Vec<&ArcStr> = match kind {
            Kind::WasmPlugin => objects.all_of_kind::<WasmPlugin>().keys().collect(),
            Kind::RateLimit => objects.all_of_kind::<RateLimit>().keys().collect(),
            _ => Vec::new(),
        };
        let key = |name: &ArcStr| ObjectKey::new(kind, namespace.clone(), name.clone());
        names.into_iter().map(key).collect()
    }

    /// Whether waypoints may call a service on behalf of an object (kind, namespace): it is in the same namespace, or a
    /// grant permits it. Unlike for routes, no setting disables this check.
    pub(crate) fn may_call_for(&self, from: (Kind, &str), service: &ObjectKey) -> bool {
        from.1 == service.namespace || self.is_granted(from, service)
    }

    /// Returns the services of other namespaces that waypoints may call on behalf of objects `from` (kind, namespace).
    /// A host name that begins with `*.` means all Services of its namespace.
    pub(crate) fn granted_services(&self, from: (Kind, &str)) -> Vec<NamespacedHostname> {
        let domain = &self.config.cluster_domain;
        let mut callees = BTreeSet::new();
        for (namespace, objects) in self.all_objects() {
            let grants = objects.all_of_kind::<ReferenceGrant>().values();
            for name in grants
                .filter(|grant| grant.permits_referrer(from))
                .flat_map(|grant| &grant.granted_services)
            {
                let name = name.as_deref().unwrap_or("*");
                let hostname = arcstr::format!("{name}.{namespace}.svc.{domain}");
                callees.insert(NamespacedHostname::new(namespace.clone(), hostname));
            }
        }
        callees.into_iter().collect()
    }

    fn is_granted(&self, from: (Kind, &str), service: &ObjectKey) -> bool {
        let grants = self
            .objects(&service.namespace)
            .map(|all| all.all_of_kind::<ReferenceGrant>());
        let mut grants = grants.into_iter().flat_map(|all| all.values());
        grants.any(|grant| grant.permits_reference(from, &service.name))
    }

    /// Returns the pods of other namespaces that permit policies attached to a Service or ServiceEntry to apply to
    /// them.
    pub(crate) fn pod_grants(&self, of: &ObjectKey) -> Vec<PodGrant> {
        let foreign = self.references.mesh_referrers(ReferenceKind::PodGrant);
        let foreign = foreign.filter(|key| key.namespace != of.namespace);
        let grants =
            foreign.filter_map(|key| Some((&key.namespace, self.get::<ReferenceGrant>(key)?)));
        let is_of = |(kind, from): &(Kind, ArcStr)| *kind == of.kind && *from == of.namespace;
        let granting = grants.filter(|(_, grant)| grant.pod_grantees.iter().any(is_of));
        let mut pod_grants: Vec<_> = granting
            .flat_map(|(namespace, grant)| {
                grant.granted_pods.iter().map(|pod| PodGrant {
                    namespace: namespace.clone(),
                    pod: pod.clone().unwrap_or_default(),
                })
            })
            .collect();
        pod_grants.sort_unstable();
        pod_grants.dedup();
        pod_grants
    }

    /// Whether a route (kind, namespace) may have a service as backend.
    pub(crate) fn may_use_backend(&self, route: (Kind, &str), service: &ObjectKey) -> bool {
        if route.1 == service.namespace || self.config.reference_grants == ReferenceGrants::Ignored
        {
            return true;
        }
        self.is_granted(route, service)
    }
}
