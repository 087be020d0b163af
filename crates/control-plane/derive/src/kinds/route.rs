//! Routes whose parents are services, of every kind: their parents, backends and status conditions.

pub(crate) mod attached;
pub(crate) mod backends;
pub(crate) mod changed;
pub(crate) mod conditions;
pub(crate) mod filters;
pub(crate) mod ports;
pub(crate) mod references;
pub(crate) mod rules;
pub(crate) mod stream;
pub(crate) mod virtual_service;

use ambit_k8s_api::{GRPCRoute, HTTPRoute, Kind, ObjectKey, TCPRoute, TLSRoute, VirtualService};
use ambit_model::{ArcStr, GatewayName, HttpRoute, StreamRoute};

use crate::{
    condition::{DerivedStatus, StatusListType},
    index::{Index, change::Change},
    kinds::{kind::MeshKind, route::changed::on_change},
    objects::route::{
        hosts::VirtualServiceScope,
        input::{RouteInput, RouteRules},
        rules::RouteRuleInput,
        session,
    },
    pod_directory::PodDirectory,
    relations::references::ReferenceKind,
    view::MeshView,
};

macro_rules! routes {
    ($($kind:ident)*) => {
        $(impl MeshKind for $kind {
            const STATUS_LIST: Option<StatusListType> = Some(StatusListType {
                list: "parents",
                manager: "ambit-routes",
                is_shared: true,
            });

            fn derived_status(view: &MeshView, _: &ObjectKey, route: &RouteInput) -> Option<DerivedStatus> {
                Some(conditions::derived_status(view, route))
            }

            fn on_change(index: &mut Index, change: &Change<'_, RouteInput>, _: &mut PodDirectory) {
                on_change(index, change);
            }
        })*

        impl MeshView {
            /// Returns a route of any kind.
            pub(crate) fn route(&self, key: &ObjectKey) -> Option<&RouteInput> {
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

impl MeshView {
    /// Returns the routes that have a service as parent.
    fn routes_of(&self, target: &ObjectKey) -> impl Iterator<Item = &RouteInput> {
        let routes = self
            .references
            .referrers(ReferenceKind::RouteParent, target);
        routes.filter_map(|key| self.route(key))
    }

    /// Returns the routes that have a service as parent, by precedence: the oldest first, then by name.
    fn sorted_routes_of(&self, target: &ObjectKey) -> Vec<&RouteInput> {
        let mut routes: Vec<_> = self.routes_of(target).collect();
        routes.sort_by_key(|route| route.precedence_key());
        routes
    }

    /// Renders the routes that a waypoint applies to requests to a host of a service: first those of the Gateway API,
    /// by precedence, then VirtualServices.
    pub(crate) fn http_routes(
        &self,
        host: &ArcStr,
        target: &ObjectKey,
        gateway: &GatewayName,
    ) -> Vec<HttpRoute> {
        let mut routes = self.gateway_api_routes(target, gateway);
        routes.extend(self.render_virtual_routes(host, target, gateway));
        routes
    }

    fn gateway_api_routes(&self, target: &ObjectKey, gateway: &GatewayName) -> Vec<HttpRoute> {
        let resolved = |route: &RouteInput| {
            let RouteRules::Http(rules) = &route.rules else {
                return None;
            };
            let rule = |(index, rule): (usize, &RouteRuleInput)| {
                let mut rule = rule.render(self, route.attached_to(target), gateway);
                if let Some(session) = &mut rule.session {
                    session::name_session(session, &route.name, index);
                }
                rule
            };
            Some(HttpRoute {
                name: route.name.clone(),
                ports: route.applicable_ports(self, target)?,
                clients: route.consumer_namespace(target, gateway),
                rules: rules.iter().enumerate().map(rule).collect(),
                first_match: false,
                of_service: false,
            })
        };
        let routes = self.sorted_routes_of(target);
        routes.into_iter().filter_map(resolved).collect()
    }

    /// Renders the routes of a kind (TCPRoute, TLSRoute) that a waypoint applies to connections to a service, by
    /// precedence.
    pub(crate) fn stream_routes(
        &self,
        kind: Kind,
        target: &ObjectKey,
        gateway: &GatewayName,
    ) -> Vec<StreamRoute> {
        let resolved = |route: &RouteInput| match &route.rules {
            RouteRules::Stream(stream) if route.kind == kind => Some(StreamRoute {
                name: route.name.clone(),
                ports: route.applicable_ports(self, target)?,
                clients: route.consumer_namespace(target, gateway),
                ..stream.render(self, route.attached_to(target))
            }),
            _ => None,
        };
        let routes = self.sorted_routes_of(target);
        routes.into_iter().filter_map(resolved).collect()
    }

    /// Returns the services that a route applies to, each with one of its hosts.
    pub(crate) fn services_routed_by(&self, key: &ObjectKey) -> Vec<(ObjectKey, ArcStr)> {
        let route = self.route(key);
        let parents = route.into_iter().flat_map(|route| &route.parents);
        let of_parents = parents.flat_map(|parent| {
            let hosts = self.hosts_of(&parent.target).into_iter();
            hosts.map(move |host| (parent.target.clone(), host))
        });
        let scope = route.and_then(|route| route.scope.as_ref());
        let called = scope.into_iter().flat_map(VirtualServiceScope::hosts);
        let called = called.flat_map(|host| {
            let records = self.record_owners(host).into_iter();
            records.map(move |(target, _)| (target.clone(), host.clone()))
        });
        of_parents.chain(called).collect()
    }
}

impl Index {
    /// Marks as stale the routes that have a host, or an object that declares it, as backend: the host's record may now
    /// belong to another object.
    pub(crate) fn mark_routes_to_host_stale(&mut self, host: &ArcStr) {
        let entries = self.view.objects_declaring(host);
        let entries = entries.filter(|key| key.kind == Kind::ServiceEntry);
        let leading = entries.flat_map(|entry| {
            self.view
                .references
                .referrers(ReferenceKind::RouteBackend, entry)
        });
        let routes: Vec<_> = self
            .view
            .references
            .referrers(ReferenceKind::RouteHost, host)
            .chain(leading)
            .cloned()
            .collect();
        for key in routes {
            let services = self.view.services_routed_by(&key);
            self.mark_object_stale(key);
            for (_, host) in services {
                self.mark_only_host_stale(host);
            }
        }
    }

    /// Marks as stale the hosts of the parents of routes that have a Service as backend, since their records contain
    /// the backend.
    pub(crate) fn mark_parent_hosts_stale(&mut self, backend: &ObjectKey) {
        let routes: Vec<_> = self
            .view
            .references
            .referrers(ReferenceKind::RouteBackend, backend)
            .cloned()
            .collect();
        for route in routes {
            let parents = self.view.route(&route).map(|route| route.parents.clone());
            for parent in parents.into_iter().flatten() {
                self.mark_object_hosts_stale(&parent.target);
            }
        }
    }
}
