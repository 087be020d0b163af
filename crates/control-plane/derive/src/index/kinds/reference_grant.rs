//! Reference grants: which routes of other namespaces may lead to the services of a namespace.

use ambit_k8s_api::{Kind, ObjectKey, ReferenceGrant, gateway};
use ambit_model::ArcStr;

use crate::{
    MeshConfig, PodDirectory, ReferenceGrants,
    index::{
        Index,
        kind::{Change, Extent, Followed, MeshKind, Read},
    },
    problem::FieldError,
};

impl Followed for ReferenceGrant {
    const EXTENT: Extent = Extent::Whole { labels: None };
}

/// A grant, as far as it is about routes and services.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GrantInput {
    /// Kinds of routes and their namespaces.
    from: Vec<(Kind, ArcStr)>,
    /// Names of services; `None` for all.
    to: Vec<Option<ArcStr>>,
}

impl GrantInput {
    fn covers(&self, route: (Kind, &str), service: &str) -> bool {
        let is_from = |(kind, namespace): &(Kind, ArcStr)| (*kind, namespace.as_str()) == route;
        self.from.iter().any(is_from) && self.covers_service(service)
    }

    fn covers_service(&self, service: &str) -> bool {
        let is_to = |name: &Option<ArcStr>| name.as_ref().is_none_or(|name| name == service);
        self.to.iter().any(is_to)
    }
}

impl MeshKind for ReferenceGrant {
    type Input = GrantInput;

    fn read(&self, _: &MeshConfig) -> Result<Read<GrantInput>, FieldError> {
        let from = self
            .spec
            .from
            .iter()
            .filter(|from| from.group == gateway::GROUP);
        let from = from.filter_map(|from| {
            let kind = Kind::find(Some(&format!("{}/v1", from.group)), &from.kind)?;
            Some((kind, from.namespace.as_str().into()))
        });
        let to = self.spec.to.iter();
        let to = to.filter(|to| to.group.is_empty() && to.kind == "Service");
        let input = GrantInput {
            from: from.collect(),
            // An empty name is one that is left out.
            to: to
                .map(|to| {
                    to.name
                        .as_deref()
                        .filter(|name| !name.is_empty())
                        .map(ArcStr::from)
                })
                .collect(),
        };
        let says_something = !input.from.is_empty() && !input.to.is_empty();
        Ok(Read::of(says_something.then_some(input), Vec::new()))
    }

    fn changed(index: &mut Index, change: &Change<'_, GrantInput>, _: &mut PodDirectory) {
        let namespace = &change.key.namespace;
        let services: Vec<ObjectKey> = index
            .route_backends
            .names()
            .filter(|service| service.namespace == *namespace)
            .filter(|service| {
                change
                    .both()
                    .any(|grant| grant.covers_service(&service.name))
            })
            .cloned()
            .collect();
        let is_covered = |host: &&ArcStr| {
            index.declarers(host).any(|key| {
                key.kind == Kind::Service
                    && key.namespace == *namespace
                    && change.both().any(|grant| grant.covers_service(&key.name))
            })
        };
        let hosts = index.route_hosts.names().filter(is_covered);
        let hosts: Vec<ArcStr> = hosts.cloned().collect();
        for service in services {
            index.mark_leading_to(&service);
        }
        for host in hosts {
            index.mark_routes_naming(&host);
        }
    }
}

impl Index {
    /// Whether a route of a namespace may lead to a service.
    pub(crate) fn may_lead_to(&self, route: (Kind, &str), service: &ObjectKey) -> bool {
        if route.1 == service.namespace || self.config.reference_grants == ReferenceGrants::Ignored
        {
            return true;
        }
        let grants = self
            .objects(&service.namespace)
            .map(|all| all.all::<ReferenceGrant>());
        let mut grants = grants.into_iter().flat_map(|all| all.values());
        grants.any(|grant| grant.covers(route, &service.name))
    }
}
