//! HTTP routes of services: where a waypoint sends requests.

mod backends;
mod cors;
mod durations;
mod filters;
mod mirrors;
mod reader;
mod references;
mod retries;
mod rules;
mod standing;

use ambit_k8s_api::{
    HTTPRoute, Kind, ObjectKey, ObjectMeta, Service, ServiceEntry, created, gateway,
};
use ambit_model::{GatewayName, HttpRoute, RouteName};
use serde_json::Value;

use crate::{
    MeshConfig, PodDirectory,
    condition::{PartsType, Standing},
    index::{
        Index,
        kind::{Change, Extent, Followed, MeshKind, Read, field},
    },
    problem::{FieldError, Note},
};
use rules::RuleInput;

impl Followed for HTTPRoute {
    const EXTENT: Extent = Extent::Whole { labels: None };
}

/// A service that a route is for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parent {
    pub(crate) target: ObjectKey,
    /// All its ports if `None`, or those of a name.
    port: Option<u16>,
    /// As it was written.
    reference: gateway::ParentReference,
}

impl Parent {
    /// The ports of the service that it means, as the service is now: all of them if empty.
    ///
    /// # Errors
    /// When the service has none that it could mean.
    fn ports(&self, index: &Index) -> Result<Vec<u16>, String> {
        let target = &self.target;
        let ports: Option<Vec<(&str, u16)>> = match target.kind {
            Kind::Service => index.get::<Service>(target).map(|service| {
                let tcp = service.ports.iter().filter(|port| port.is_tcp);
                tcp.map(|port| (port.name.as_str(), port.port)).collect()
            }),
            _ => index
                .get::<ServiceEntry>(target)
                .map(|entry| entry.named_ports().collect()),
        };
        let ports = ports.ok_or_else(|| format!("there is no {target}"))?;
        let (number, name) = (self.port, self.reference.section_name.as_deref());
        if number.is_none() && name.is_none() {
            return Ok(Vec::new());
        }
        let is_meant = |(its_name, its_number): &(&str, u16)| {
            number.is_none_or(|number| *its_number == number)
                && name.is_none_or(|name| *its_name == name)
        };
        let meant = ports.into_iter().filter(is_meant).map(|(_, port)| port);
        let meant: Vec<u16> = meant.collect();
        if meant.is_empty() {
            let number = number.map(|port| port.to_string()).unwrap_or_default();
            let asked: Vec<_> = name.into_iter().chain([number.as_str()]).collect();
            return Err(format!("{target} has no port {}", asked.join(" ").trim()));
        }
        Ok(meant)
    }
}

/// A route as the mesh sees it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RouteInput {
    kind: Kind,
    name: RouteName,
    created: String,
    pub(crate) parents: Vec<Parent>,
    rules: Vec<RuleInput>,
}

impl MeshKind for HTTPRoute {
    type Input = RouteInput;

    const PARTS: Option<PartsType> = Some(PartsType {
        list: "parents",
        manager: "ambit-routes",
        is_shared: true,
    });

    fn read(&self, _: &MeshConfig) -> Result<Read<RouteInput>, FieldError> {
        let mut notes = Vec::new();
        let namespace = self.metadata.namespace.as_deref().unwrap_or("default");
        let parents = parents(&self.spec.parent_refs, namespace)?;
        if parents.is_empty() {
            // Of other controllers' Gateways.
            return Ok(Read::of(None, notes));
        }
        if !self.spec.hostnames.is_empty() {
            let message = "has no effect on routes of services: all requests to the service match";
            notes.push(Note::new("spec.hostnames", message));
        }
        let rules = rules::read(&self.spec, namespace, &mut notes)?;
        Ok(Read::of(Some(route(self, parents, rules)), notes))
    }

    /// Requests to its services are answered with an error until it can be read.
    fn substitute(&self, _: &MeshConfig) -> Option<RouteInput> {
        let namespace = self.metadata.namespace.as_deref().unwrap_or("default");
        let parents = parents(&self.spec.parent_refs, namespace).ok()?;
        let rules = vec![RuleInput::unusable()];
        (!parents.is_empty()).then(|| route(self, parents, rules))
    }

    fn readable_part(metadata: ObjectMeta, spec: Option<&Value>) -> Option<Self> {
        Some(Self {
            metadata,
            spec: gateway::HttpRouteSpec {
                parent_refs: field(spec, "parentRefs").unwrap_or_default(),
                ..gateway::HttpRouteSpec::default()
            },
            ..Self::default()
        })
    }

    fn standing(index: &Index, _: &ObjectKey, route: &RouteInput) -> Option<Standing> {
        Some(standing::of(index, route))
    }

    fn changed(index: &mut Index, change: &Change<'_, RouteInput>, _: &mut PodDirectory) {
        let targets = |route: Option<&RouteInput>| -> Vec<ObjectKey> {
            let parents = route.into_iter().flat_map(|route| &route.parents);
            parents.map(|parent| parent.target.clone()).collect()
        };
        let backends = |route: Option<&RouteInput>| -> Vec<ObjectKey> {
            let rules = route.into_iter().flat_map(|route| &route.rules);
            rules.flat_map(RuleInput::targets).cloned().collect()
        };
        let (old, new) = (targets(change.old), targets(change.new));
        for target in old.iter().chain(&new) {
            index.mark_hosts_of_object(target);
        }
        let key = change.key;
        index.mark(key.clone());
        index.route_parents.replace(key, old, new);
        let (old, new) = (backends(change.old), backends(change.new));
        index.route_backends.replace(key, old, new);
    }
}

impl RouteInput {
    /// Whether a waypoint follows the route for all clients of a service: those of others than the service's and the
    /// waypoint's own namespaces are for clients of theirs.
    fn is_for_all(&self, target: &ObjectKey, gateway: &GatewayName) -> bool {
        let own = &self.name.namespace;
        *own == target.namespace || *own == gateway.namespace
    }

    /// The route as it concerns a service; `None` if it concerns none of its ports.
    fn of(&self, index: &Index, target: &ObjectKey, gateway: &GatewayName) -> Option<HttpRoute> {
        let parents = self
            .parents
            .iter()
            .filter(|parent| parent.target == *target);
        let meant: Vec<Vec<u16>> = parents
            .filter_map(|parent| parent.ports(index).ok())
            .collect();
        if meant.is_empty() {
            return None;
        }
        let mut ports = if meant.iter().any(Vec::is_empty) {
            Vec::new()
        } else {
            meant.concat()
        };
        ports.sort_unstable();
        ports.dedup();
        Some(HttpRoute {
            name: self.name.clone(),
            ports,
            clients: (!self.is_for_all(target, gateway)).then(|| self.name.namespace.clone()),
            rules: self
                .rules
                .iter()
                .map(|rule| rule.resolved(index, self))
                .collect(),
        })
    }
}

/// The kind that a reference names, if it is one of services.
fn service_kind(group: &str, kind: &str) -> Option<Kind> {
    match (group, kind) {
        ("" | "core", "Service") => Some(Kind::Service),
        ("networking.istio.io", "ServiceEntry") => Some(Kind::ServiceEntry),
        _ => None,
    }
}

fn parents(
    references: &[gateway::ParentReference],
    namespace: &str,
) -> Result<Vec<Parent>, FieldError> {
    let mut parents = Vec::new();
    for (index, reference) in references.iter().enumerate() {
        let group = reference.group.as_deref().unwrap_or(gateway::GROUP);
        let kind = reference.kind.as_deref().unwrap_or("Gateway");
        let Some(kind) = service_kind(group, kind) else {
            continue;
        };
        let port = reference.port.map(references::port).transpose();
        let port = port.map_err(|message| {
            FieldError::new(format!("spec.parentRefs[{index}].port"), message)
        })?;
        let namespace = reference.namespace.as_deref().unwrap_or(namespace);
        parents.push(Parent {
            target: ObjectKey::new(kind, namespace, reference.name.as_str()),
            port,
            reference: reference.clone(),
        });
    }
    Ok(parents)
}

fn route(from: &HTTPRoute, parents: Vec<Parent>, rules: Vec<RuleInput>) -> RouteInput {
    let metadata = &from.metadata;
    RouteInput {
        kind: Kind::HTTPRoute,
        name: RouteName {
            kind: Kind::HTTPRoute.as_str().into(),
            namespace: metadata.namespace.as_deref().unwrap_or("default").into(),
            name: metadata.name.as_deref().unwrap_or_default().into(),
        },
        created: created(metadata),
        parents,
        rules,
    }
}

impl Index {
    /// The routes that a waypoint follows for a service, oldest first and then by name.
    pub(crate) fn routes(&self, target: &ObjectKey, gateway: &GatewayName) -> Vec<HttpRoute> {
        let routes = self.route_parents.of(target);
        let mut routes: Vec<_> = routes
            .filter_map(|key| self.get::<HTTPRoute>(key))
            .collect();
        routes.sort_by_key(|route| (&route.created, &route.name.namespace, &route.name.name));
        routes
            .iter()
            .filter_map(|route| route.of(self, target, gateway))
            .collect()
    }

    /// Routes have these Services as backends: what waypoints are told of the routes' services changes with
    /// them.
    pub(crate) fn mark_routes_to(&mut self, backend: &ObjectKey) {
        let routes: Vec<_> = self.route_backends.of(backend).cloned().collect();
        for route in routes {
            let parents = self
                .get::<HTTPRoute>(&route)
                .map(|route| route.parents.clone());
            for parent in parents.into_iter().flatten() {
                self.mark_hosts_of_object(&parent.target);
            }
        }
    }
}
