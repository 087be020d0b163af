//! Routes of services, of every kind: their parents, backends and conditions. The rules of a kind are read in its own
//! file.

mod backends;
mod cors;
mod extension;
mod filters;
mod grpc_route;
mod http_route;
mod mirrors;
mod reader;
mod references;
mod session;
mod standing;
mod stream;
mod unsupported;
mod virtual_service;

use ambit_k8s_api::{
    GRPCRoute, HTTPRoute, Kind, ObjectKey, ObjectMeta, ObjectType, Service, ServiceEntry, TCPRoute,
    TLSRoute, VirtualService, created,
    gateway::{self, ParentReference},
};
use ambit_model::{AppProtocol, ArcStr, GatewayName, HttpRoute, RouteName, StreamRoute};
use serde_json::Value;

use crate::{
    MeshConfig, PodDirectory,
    condition::{PartsType, Standing},
    index::{
        Index, MeshView,
        kind::{Change, Extent, Followed, MeshKind, Read, field},
        references::Edge,
    },
    problem::{FieldError, Note},
};
use backends::BackendInput;
use http_route::RuleInput;
pub(super) use reader::{Reader, is_token};
use references::{Named, Unresolved};
use stream::StreamInput;
pub(super) use unsupported::{UNSUPPORTED_VALUE, Unsupported};
use virtual_service::HostScope;
pub(super) use virtual_service::is_for_mesh;

/// A service that a route is for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parent {
    pub(crate) target: ObjectKey,
    /// All its ports if `None`, or those of a name.
    port: Option<u16>,
    /// As it was written.
    reference: ParentReference,
}

impl Parent {
    /// The ports of the service that it means, as the service is now: all of them if empty.
    ///
    /// # Errors
    /// When the service has none that it could mean.
    fn ports(&self, view: &MeshView) -> Result<Vec<u16>, String> {
        let target = &self.target;
        let ports = declared_ports(view, target);
        let ports = ports.ok_or_else(|| format!("there is no {target}"))?;
        let (number, name) = (self.port, self.reference.section_name.as_deref());
        if number.is_none() && name.is_none() {
            return Ok(Vec::new());
        }
        let is_meant = |(its_name, its_number, _): &DeclaredPort<'_>| {
            number.is_none_or(|number| *its_number == number)
                && name.is_none_or(|name| *its_name == name)
        };
        let meant = ports.into_iter().filter(is_meant).map(|(_, port, _)| port);
        let meant: Vec<u16> = meant.collect();
        if meant.is_empty() {
            let number = number.map(|port| port.to_string()).unwrap_or_default();
            let requested: Vec<_> = name.into_iter().chain([number.as_str()]).collect();
            return Err(format!(
                "{target} has no port {}",
                requested.join(" ").trim()
            ));
        }
        Ok(meant)
    }
}

/// The name and number of a port, and what it speaks.
pub(super) type DeclaredPort<'a> = (&'a str, u16, AppProtocol);

/// The ports of a service that routes can be for.
pub(super) fn declared_ports<'a>(
    view: &'a MeshView,
    target: &ObjectKey,
) -> Option<Vec<DeclaredPort<'a>>> {
    if target.kind == Kind::Service {
        let service = view.get::<Service>(target)?;
        let tcp = service.ports.iter().filter(|port| port.is_tcp);
        let ports = tcp.map(|port| (port.name.as_str(), port.port, port.app_protocol));
        return Some(ports.collect());
    }
    let entry = view.get::<ServiceEntry>(target)?;
    Some(entry.declared_ports().collect())
}

/// A route as the mesh sees it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RouteInput {
    kind: Kind,
    name: RouteName,
    created: String,
    pub(crate) parents: Vec<Parent>,
    /// Hosts that it is for, in the place of parents, if it is a VirtualService.
    scope: Option<HostScope>,
    rules: Rules,
}

/// A route as it is followed for requests to one of its parents.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttachedRoute<'a> {
    route: &'a RouteInput,
    parent: &'a ObjectKey,
    /// The port of the parent that is called; any if `None`.
    port: Option<u16>,
}

/// Rules of a route.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Rules {
    /// Rules for requests.
    Http(Vec<RuleInput>),
    /// Rules for connections.
    Stream(StreamInput),
}

/// Differences between the kinds of routes.
pub(super) trait RouteObject: ObjectType {
    /// Parents of the route.
    fn parent_refs(&self) -> &[ParentReference];

    /// Sets the part that can be read of an object that cannot be read as a whole.
    fn set_readable(&mut self, parent_refs: Vec<ParentReference>, spec: Option<&Value>);

    /// Reads its rules; what is not supported is noted.
    fn rules(&self, namespace: &str, notes: &mut Vec<Note>) -> Result<Rules, FieldError>;

    /// In place of rules that cannot be read: nothing that the route might be for is served.
    fn unusable(&self) -> Rules;
}

macro_rules! routes {
    ($($kind:ident)*) => {
        $(impl Followed for $kind {
            const EXTENT: Extent = Extent::Whole { labels: None };
        }

        impl MeshKind for $kind {
            type Input = RouteInput;

            const PARTS: Option<PartsType> = Some(PartsType {
                list: "parents",
                manager: "ambit-routes",
                is_shared: true,
            });

            fn read(&self, _: &MeshConfig) -> Result<Read<RouteInput>, FieldError> {
                read(self)
            }

            /// Its share of traffic is refused until it can be read.
            fn substitute(&self, _: &MeshConfig) -> Option<RouteInput> {
                let parents = parents(self.parent_refs(), namespace(&self.metadata)).ok()?;
                (!parents.is_empty()).then(|| route(self, parents, self.unusable()))
            }

            fn readable_part(metadata: ObjectMeta, spec: Option<&Value>) -> Option<Self> {
                let mut part = Self { metadata, ..Self::default() };
                part.set_readable(field(spec, "parentRefs").unwrap_or_default(), spec);
                Some(part)
            }

            fn standing(view: &MeshView, _: &ObjectKey, route: &RouteInput) -> Option<Standing> {
                Some(standing::of(view, route))
            }

            fn changed(index: &mut Index, change: &Change<'_, RouteInput>, _: &mut PodDirectory) {
                changed(index, change);
            }
        })*

        impl MeshView {
            /// A route of any kind.
            pub(super) fn route(&self, key: &ObjectKey) -> Option<&RouteInput> {
                match key.kind {
                    $(Kind::$kind => self.get::<$kind>(key),)*
                    Kind::VirtualService => self.get::<VirtualService>(key),
                    _ => None,
                }
            }
        }
    };
}

routes! { HTTPRoute GRPCRoute TLSRoute TCPRoute }

fn read<K: RouteObject>(object: &K) -> Result<Read<RouteInput>, FieldError> {
    let mut notes = Vec::new();
    let namespace = namespace(object.metadata());
    let parents = parents(object.parent_refs(), namespace)?;
    if parents.is_empty() {
        // Of other controllers' Gateways.
        return Ok(Read::of(None, notes));
    }
    let rules = object.rules(namespace, &mut notes)?;
    Ok(Read::of(Some(route(object, parents, rules)), notes))
}

/// Notes that names of hosts have no effect.
pub(super) fn note_hostnames(hostnames: &[String], notes: &mut Vec<Note>) {
    if !hostnames.is_empty() {
        let message = "has no effect on routes of services: all requests to the service match";
        notes.push(Note::new("spec.hostnames", message));
    }
}

/// Marks what depends on a route.
fn changed(index: &mut Index, change: &Change<'_, RouteInput>) {
    let targets = |route: Option<&RouteInput>| -> Vec<ObjectKey> {
        let parents = route.into_iter().flat_map(|route| &route.parents);
        parents.map(|parent| parent.target.clone()).collect()
    };
    let backends = |route: Option<&RouteInput>| -> Vec<ObjectKey> {
        let targets = route.into_iter().flat_map(RouteInput::targets);
        targets.cloned().collect()
    };
    let hosts = |route: Option<&RouteInput>| -> Vec<ArcStr> {
        let hosts = route.into_iter().flat_map(RouteInput::hosts);
        hosts.cloned().collect()
    };
    let (old, new) = (targets(change.old), targets(change.new));
    // Hosts mark the routes of their services, too: the conditions of one depend on the others.
    for target in old.iter().chain(&new) {
        index.mark_hosts_of_object(target);
    }
    let key = change.key;
    index.mark(key.clone());
    index
        .view
        .references
        .replace(Edge::RouteParent, key, old, new);
    let (old, new) = (backends(change.old), backends(change.new));
    for backend in old.iter().chain(&new) {
        index.mark_destinations_of(backend);
        if backend.kind.group() == ambit_k8s_api::ambit::GROUP {
            // Its conditions list the routes that name it.
            index.mark(backend.clone());
        }
    }
    index
        .view
        .references
        .replace(Edge::RouteBackend, key, old, new);
    let (old, new) = (hosts(change.old), hosts(change.new));
    for host in old.iter().chain(&new) {
        index.mark_rules_of(host);
        index.mark_only_host(host.clone());
    }
    index
        .view
        .references
        .replace(Edge::RouteHost, key, old, new);
}

impl Rules {
    /// Services of their backends and mirrors.
    fn named(&self) -> impl Iterator<Item = &Named> {
        let (http, stream) = match self {
            Self::Http(rules) => (Some(rules), None),
            Self::Stream(stream) => (None, Some(stream)),
        };
        let http = http.into_iter().flatten().flat_map(RuleInput::named);
        let stream = stream.into_iter().flat_map(StreamInput::backends);
        http.chain(stream.filter_map(|backend| backend.to.named()))
    }

    /// The objects that their filters name.
    fn extension_targets(&self) -> impl Iterator<Item = &ObjectKey> {
        let http = match self {
            Self::Http(rules) => Some(rules),
            Self::Stream(_) => None,
        };
        let http = http.into_iter().flatten();
        http.flat_map(RuleInput::extension_targets)
    }

    fn backends(&self) -> impl Iterator<Item = &BackendInput> {
        let (http, stream) = match self {
            Self::Http(rules) => (Some(rules), None),
            Self::Stream(stream) => (None, Some(stream)),
        };
        let http = http.into_iter().flatten().flat_map(RuleInput::backends);
        http.chain(stream.into_iter().flat_map(StreamInput::backends))
    }

    /// Mirrors that requests cannot go to.
    fn mirror_errors(&self, view: &MeshView, route: AttachedRoute<'_>) -> Vec<Unresolved> {
        let Self::Http(rules) = self else {
            return Vec::new();
        };
        let errors = rules.iter().map(|rule| rule.mirror_errors(view, route));
        errors.flatten().collect()
    }

    /// Filters without which requests may not pass.
    fn filter_errors(&self, view: &MeshView) -> Vec<Unresolved> {
        let Self::Http(rules) = self else {
            return Vec::new();
        };
        let errors = rules.iter().map(|rule| rule.filter_errors(view));
        errors.flatten().collect()
    }

    /// Parts of the rules that are not supported.
    fn unsupported(&self) -> Vec<&Unsupported> {
        match self {
            Self::Http(rules) => rules.iter().filter_map(RuleInput::unsupported).collect(),
            Self::Stream(stream) => stream.unsupported().into_iter().collect(),
        }
    }
}

impl RouteInput {
    /// Its backends, and the objects that its filters name.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &ObjectKey> {
        let services = self.rules.named().filter_map(|named| match named {
            Named::Object(key) => Some(key),
            Named::Host(_) => None,
        });
        services.chain(self.rules.extension_targets())
    }

    /// Its backends of the kind Hostname.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &ArcStr> {
        self.rules.named().filter_map(|named| match named {
            Named::Host(host) => Some(host),
            Named::Object(_) => None,
        })
    }

    /// The route, for requests to one of its parents.
    fn attached_to<'a>(&'a self, parent: &'a ObjectKey) -> AttachedRoute<'a> {
        AttachedRoute {
            route: self,
            parent,
            port: None,
        }
    }

    pub(crate) fn namespace(&self) -> &ArcStr {
        &self.name.namespace
    }

    /// The less, the sooner it is followed where one alone can be.
    fn age(&self) -> impl Ord + '_ {
        let RouteName {
            kind,
            namespace,
            name,
        } = &self.name;
        (&self.created, namespace, name, kind)
    }

    /// Whether a waypoint follows the route for all clients of a service: those of others than the service's and the
    /// waypoint's own namespaces are for clients of theirs.
    fn is_for_all(&self, target: &ObjectKey, gateway: &GatewayName) -> bool {
        let own = &self.name.namespace;
        *own == target.namespace || *own == gateway.namespace
    }

    /// The namespace of the clients that it is for, unless it is for all.
    fn clients(&self, target: &ObjectKey, gateway: &GatewayName) -> Option<ArcStr> {
        (!self.is_for_all(target, gateway)).then(|| self.name.namespace.clone())
    }

    /// The ports of a service that it is for, all if empty; `None` if it is for none.
    fn ports(&self, view: &MeshView, target: &ObjectKey) -> Option<Vec<u16>> {
        let parents = self
            .parents
            .iter()
            .filter(|parent| parent.target == *target);
        let meant: Vec<Vec<u16>> = parents
            .filter_map(|parent| parent.ports(view).ok())
            .collect();
        if meant.is_empty() {
            return None;
        }
        if meant.iter().any(Vec::is_empty) {
            return Some(Vec::new());
        }
        let mut ports = meant.concat();
        ports.sort_unstable();
        ports.dedup();
        Some(ports)
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

fn namespace(metadata: &ObjectMeta) -> &str {
    metadata.namespace.as_deref().unwrap_or("default")
}

fn parents(references: &[ParentReference], namespace: &str) -> Result<Vec<Parent>, FieldError> {
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

fn route<K: RouteObject>(from: &K, parents: Vec<Parent>, rules: Rules) -> RouteInput {
    let metadata = from.metadata();
    RouteInput {
        kind: K::OBJECT_KIND,
        name: RouteName {
            kind: K::OBJECT_KIND.as_str().into(),
            namespace: namespace(metadata).into(),
            name: metadata.name.as_deref().unwrap_or_default().into(),
        },
        created: created(metadata),
        parents,
        scope: None,
        rules,
    }
}

impl MeshView {
    /// The routes of a service.
    fn routes_of(&self, target: &ObjectKey) -> impl Iterator<Item = &RouteInput> {
        let routes = self.references.of(Edge::RouteParent, target);
        routes.filter_map(|key| self.route(key))
    }

    /// The same, oldest first and then by name.
    fn sorted_routes_of(&self, target: &ObjectKey) -> Vec<&RouteInput> {
        let mut routes: Vec<_> = self.routes_of(target).collect();
        routes.sort_by_key(|route| route.age());
        routes
    }

    /// The routes that a waypoint follows for requests to a host of a service, oldest first and then by name; after
    /// those of the Gateway API the VirtualServices.
    pub(crate) fn http_routes(
        &self,
        host: &ArcStr,
        target: &ObjectKey,
        gateway: &GatewayName,
    ) -> Vec<HttpRoute> {
        let mut routes = self.gateway_api_routes(target, gateway);
        routes.extend(self.virtual_routes(host, target, gateway));
        routes
    }

    fn gateway_api_routes(&self, target: &ObjectKey, gateway: &GatewayName) -> Vec<HttpRoute> {
        let resolved = |route: &RouteInput| {
            let Rules::Http(rules) = &route.rules else {
                return None;
            };
            let rule = |(index, rule): (usize, &RuleInput)| {
                let mut rule = rule.resolved(self, route.attached_to(target), gateway);
                if let Some(session) = &mut rule.session {
                    session::name(session, &route.name, index);
                }
                rule
            };
            Some(HttpRoute {
                name: route.name.clone(),
                ports: route.ports(self, target)?,
                clients: route.clients(target, gateway),
                rules: rules.iter().enumerate().map(rule).collect(),
                first_match: false,
                of_service: false,
            })
        };
        let routes = self.sorted_routes_of(target);
        routes.into_iter().filter_map(resolved).collect()
    }

    /// The routes of a kind that a waypoint follows for connections to a service, oldest first and then by name.
    pub(crate) fn stream_routes(
        &self,
        kind: Kind,
        target: &ObjectKey,
        gateway: &GatewayName,
    ) -> Vec<StreamRoute> {
        let resolved = |route: &RouteInput| match &route.rules {
            Rules::Stream(stream) if route.kind == kind => Some(StreamRoute {
                name: route.name.clone(),
                ports: route.ports(self, target)?,
                clients: route.clients(target, gateway),
                ..stream.resolved(self, route.attached_to(target))
            }),
            _ => None,
        };
        let routes = self.sorted_routes_of(target);
        routes.into_iter().filter_map(resolved).collect()
    }

    /// The services that a route is for, each with a host of it.
    pub(crate) fn services_routed_by(&self, key: &ObjectKey) -> Vec<(ObjectKey, ArcStr)> {
        let route = self.route(key);
        let parents = route.into_iter().flat_map(|route| &route.parents);
        let of_parents = parents.flat_map(|parent| {
            let hosts = self.hosts_of(&parent.target).into_iter();
            hosts.map(move |host| (parent.target.clone(), host))
        });
        let scope = route.and_then(|route| route.scope.as_ref());
        let called = scope.into_iter().flat_map(HostScope::hosts);
        let called = called.flat_map(|host| {
            let records = self.records_of(host).into_iter();
            records.map(move |(target, _)| (target.clone(), host.clone()))
        });
        of_parents.chain(called).collect()
    }
}

impl Index {
    /// Other objects may make the records of a host than before: routes that name it, or those objects, may lead
    /// elsewhere.
    pub(crate) fn mark_routes_naming(&mut self, host: &ArcStr) {
        let entries = self.view.declarers(host);
        let entries = entries.filter(|key| key.kind == Kind::ServiceEntry);
        let leading = entries.flat_map(|entry| self.view.references.of(Edge::RouteBackend, entry));
        let routes: Vec<_> = self
            .view
            .references
            .of(Edge::RouteHost, host)
            .chain(leading)
            .cloned()
            .collect();
        for key in routes {
            let services = self.view.services_routed_by(&key);
            self.mark(key);
            for (_, host) in services {
                self.mark_only_host(host);
            }
        }
    }

    /// Routes have these Services as backends: the records of the routes' services change with them.
    pub(crate) fn mark_routes_to(&mut self, backend: &ObjectKey) {
        let routes: Vec<_> = self
            .view
            .references
            .of(Edge::RouteBackend, backend)
            .cloned()
            .collect();
        for route in routes {
            let parents = self.view.route(&route).map(|route| route.parents.clone());
            for parent in parents.into_iter().flatten() {
                self.mark_hosts_of_object(&parent.target);
            }
        }
    }
}
