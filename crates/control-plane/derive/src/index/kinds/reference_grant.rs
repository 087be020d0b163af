//! Reference grants: which routes of other namespaces may have services of a namespace as backends, which objects of
//! other namespaces waypoints may call these services for, and of which namespaces Services and ServiceEntries have
//! their attachments applied to requests to its pods, where these are their endpoints.

use std::collections::BTreeSet;

use ambit_k8s_api::{Kind, ObjectKey, RateLimit, ReferenceGrant, WasmPlugin, gateway};
use ambit_model::{ArcStr, NamespacedHostname, PodGrant};

use crate::{
    MeshConfig, PodDirectory, ReferenceGrants,
    index::{
        Index, MeshView,
        kind::{Change, Extent, Followed, MeshKind, Read},
        references::Edge,
    },
    problem::FieldError,
};

impl Followed for ReferenceGrant {
    const EXTENT: Extent = Extent::Whole { labels: None };
}

/// Kinds of objects for which waypoints make calls, or the control plane fetches key sets.
const CALLING: [Kind; 3] = [
    Kind::WasmPlugin,
    Kind::RateLimit,
    Kind::RequestAuthentication,
];

/// A grant, as far as it is about routes, calls and services, or about services and pods.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GrantInput {
    /// Kinds of targets, and their namespaces: Services and ServiceEntries.
    attached: Vec<(Kind, ArcStr)>,
    /// Names of pods; `None` for all.
    pods: Vec<Option<ArcStr>>,
    /// Kinds of routes and of objects for which waypoints make calls, and their namespaces.
    from: Vec<(Kind, ArcStr)>,
    /// Names of services; `None` for all.
    to: Vec<Option<ArcStr>>,
}

impl GrantInput {
    fn covers(&self, from: (Kind, &str), service: &str) -> bool {
        self.is_from(from) && self.covers_service(service)
    }

    fn is_from(&self, from: (Kind, &str)) -> bool {
        let mut all = self.from.iter();
        all.any(|(kind, namespace)| (*kind, namespace.as_str()) == from)
    }

    fn covers_service(&self, service: &str) -> bool {
        let is_to = |name: &Option<ArcStr>| name.as_ref().is_none_or(|name| name == service);
        self.to.iter().any(is_to)
    }
}

impl MeshKind for ReferenceGrant {
    type Input = GrantInput;

    fn read(&self, _: &MeshConfig) -> Result<Read<GrantInput>, FieldError> {
        let attached = self.spec.from.iter().filter_map(|from| {
            let kind = match (from.group.as_str(), from.kind.as_str()) {
                ("", "Service") => Kind::Service,
                ("networking.istio.io", "ServiceEntry") => Kind::ServiceEntry,
                _ => return None,
            };
            Some((kind, from.namespace.as_str().into()))
        });
        let from = self.spec.from.iter().filter_map(|from| {
            let kind = Kind::find(Some(&format!("{}/v1", from.group)), &from.kind)?;
            let is_route = from.group == gateway::GROUP || kind == Kind::VirtualService;
            let is_read = is_route || CALLING.contains(&kind);
            is_read.then(|| (kind, from.namespace.as_str().into()))
        });
        let to = |kind: &str| {
            let to = self.spec.to.iter();
            let to = to.filter(|to| to.group.is_empty() && to.kind == kind);
            // An empty name is one that is left out.
            let names = to.map(|to| to.name.as_deref().filter(|name| !name.is_empty()));
            names.map(|name| name.map(ArcStr::from)).collect::<Vec<_>>()
        };
        let input = GrantInput {
            attached: attached.collect(),
            pods: to("Pod"),
            from: from.collect(),
            to: to("Service"),
        };
        let is_of_routes = !input.from.is_empty() && !input.to.is_empty();
        let is_of_pods = !input.attached.is_empty() && !input.pods.is_empty();
        let says_something = is_of_routes || is_of_pods;
        Ok(Read::of(says_something.then_some(input), Vec::new()))
    }

    fn changed(index: &mut Index, change: &Change<'_, GrantInput>, _: &mut PodDirectory) {
        let namespace = &change.key.namespace;
        let names_pods = change.new.is_some_and(|grant| !grant.pods.is_empty());
        index
            .view
            .references
            .set(Edge::GrantsPods, change.key, names_pods);
        if change.both().any(|grant| !grant.pods.is_empty()) {
            // Whether the rules of their waypoint are known depends on it.
            index.mark_namespace(namespace);
        }
        let attached = change.both().flat_map(|grant| &grant.attached);
        let attached: BTreeSet<ArcStr> = attached.map(|(_, of)| of.clone()).collect();
        for of in &attached {
            index.mark_hosts_of_namespace(of);
        }
        let services: Vec<ObjectKey> = index
            .view
            .references
            .names(Edge::RouteBackend)
            .filter(|service: &&ObjectKey| service.namespace == *namespace)
            .filter(|service| {
                change
                    .both()
                    .any(|grant| grant.covers_service(&service.name))
            })
            .cloned()
            .collect();
        let is_covered = |host: &&ArcStr| {
            index.view.declarers(host).any(|key| {
                key.kind == Kind::Service
                    && key.namespace == *namespace
                    && change.both().any(|grant| grant.covers_service(&key.name))
            })
        };
        let hosts = index
            .view
            .references
            .names(Edge::RouteHost)
            .filter(is_covered);
        let hosts: Vec<ArcStr> = hosts.cloned().collect();
        for service in services {
            index.mark_leading_to(&service);
        }
        for host in hosts {
            index.mark_routes_naming(&host);
        }
        let from = change.both().flat_map(|grant| &grant.from);
        let from: BTreeSet<_> = from.filter(|(kind, _)| CALLING.contains(kind)).collect();
        let callers: Vec<ObjectKey> = from
            .into_iter()
            .flat_map(|(kind, namespace)| index.view.callers(*kind, namespace))
            .collect();
        for caller in callers {
            index.mark(caller);
        }
    }
}

impl MeshView {
    /// The objects of a kind for which waypoints make calls.
    fn callers(&self, kind: Kind, namespace: &ArcStr) -> Vec<ObjectKey> {
        let Some(objects) = self.objects(namespace) else {
            return Vec::new();
        };
        let names: Vec<&ArcStr> = match kind {
            Kind::WasmPlugin => objects.all::<WasmPlugin>().keys().collect(),
            Kind::RateLimit => objects.all::<RateLimit>().keys().collect(),
            _ => Vec::new(),
        };
        let key = |name: &ArcStr| ObjectKey::new(kind, namespace.clone(), name.clone());
        names.into_iter().map(key).collect()
    }

    /// Whether waypoints may call a service for an object of a namespace: of the same one, or with a grant. Unlike for
    /// routes, no setting does without grants.
    pub(crate) fn may_call_for(&self, from: (Kind, &str), service: &ObjectKey) -> bool {
        from.1 == service.namespace || self.is_granted(from, service)
    }

    /// The services of other namespaces that waypoints may call for the objects of a kind and namespace. A hostname
    /// that begins with `*.` means all Services of its namespace.
    pub(crate) fn granted_callees(&self, from: (Kind, &str)) -> Vec<NamespacedHostname> {
        let domain = &self.config.cluster_domain;
        let mut callees = BTreeSet::new();
        for (namespace, objects) in self.all_objects() {
            let grants = objects.all::<ReferenceGrant>().values();
            for name in grants
                .filter(|grant| grant.is_from(from))
                .flat_map(|grant| &grant.to)
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
            .map(|all| all.all::<ReferenceGrant>());
        let mut grants = grants.into_iter().flat_map(|all| all.values());
        grants.any(|grant| grant.covers(from, &service.name))
    }

    /// Pods of other namespaces to which objects attached to a Service or ServiceEntry apply.
    pub(crate) fn grantors(&self, of: &ObjectKey) -> Vec<PodGrant> {
        let foreign = self.references.of_mesh(Edge::GrantsPods);
        let foreign = foreign.filter(|key| key.namespace != of.namespace);
        let grants =
            foreign.filter_map(|key| Some((&key.namespace, self.get::<ReferenceGrant>(key)?)));
        let is_of = |(kind, from): &(Kind, ArcStr)| *kind == of.kind && *from == of.namespace;
        let granting = grants.filter(|(_, grant)| grant.attached.iter().any(is_of));
        let mut grantors: Vec<_> = granting
            .flat_map(|(namespace, grant)| {
                grant.pods.iter().map(|pod| PodGrant {
                    namespace: namespace.clone(),
                    pod: pod.clone().unwrap_or_default(),
                })
            })
            .collect();
        grantors.sort_unstable();
        grantors.dedup();
        grantors
    }

    /// Whether a route of a namespace may have a service as a backend.
    pub(crate) fn may_lead_to(&self, route: (Kind, &str), service: &ObjectKey) -> bool {
        if route.1 == service.namespace || self.config.reference_grants == ReferenceGrants::Ignored
        {
            return true;
        }
        self.is_granted(route, service)
    }
}
