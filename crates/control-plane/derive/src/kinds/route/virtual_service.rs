//! VirtualServices at waypoints: their HTTP rules become the same records as those of HTTPRoutes.
//!
//! VirtualServices name hosts rather than objects; a host belongs to a Service or ServiceEntry. A VirtualService in the
//! namespace of the service or of the waypoint applies to all clients; one in another namespace applies to the clients
//! of that namespace, like a consumer route (GAMMA). `exportTo` lists the namespaces whose proxies apply it: the
//! waypoint's, or that of the clients. The first rule that matches applies, the oldest VirtualService first. A Gateway
//! API route of a service takes precedence over its VirtualServices.

pub(crate) mod conditions;

use std::collections::{BTreeMap, BTreeSet};

use ambit_k8s_api::{ObjectKey, VirtualService};
use ambit_model::{ArcStr, GatewayName, HttpRoute, HttpRouteMatch, HttpRouteRule, RouteName};

use crate::{
    condition::{ConditionType, DerivedStatus, VIRTUAL_SERVICE_USED},
    index::{Index, change::Change},
    kinds::{
        kind::MeshKind,
        route::{attached::AttachedRoute, changed, ports::declared_ports},
    },
    objects::route::{
        hosts::VirtualServiceScope,
        input::{RouteInput, RouteRules},
        rules::{MatchScope, RouteRuleInput},
    },
    pod_directory::PodDirectory,
    relations::references::ReferenceKind,
    view::MeshView,
};

/// Clients that the same VirtualServices apply to: all clients, or those of one namespace.
#[derive(Debug)]
struct ClientGroup<'a> {
    client_namespace: Option<ArcStr>,
    /// Whether the VirtualServices apply to all clients. If the group is still limited to one namespace, some of their
    /// matches name it.
    is_for_all_clients: bool,
    virtual_services: Vec<&'a RouteInput>,
}

/// HTTPRoute or GRPCRoute of a service, which takes precedence over VirtualServices.
#[derive(Debug)]
struct PrecedingRoute<'a> {
    name: &'a RouteName,
    client_namespace: Option<ArcStr>,
    /// Service ports that the route applies to; all ports if empty.
    ports: Vec<u16>,
}

impl MeshKind for VirtualService {
    const CONDITIONS: &'static [ConditionType] = &[VIRTUAL_SERVICE_USED];

    fn derived_status(view: &MeshView, _: &ObjectKey, route: &RouteInput) -> Option<DerivedStatus> {
        conditions::derived_status(view, route)
    }

    fn on_change(index: &mut Index, change: &Change<'_, RouteInput>, _: &mut PodDirectory) {
        changed::on_change(index, change);
        let scope = |route: Option<&RouteInput>| route.and_then(|route| route.scope.clone());
        let (old, new) = (scope(change.old), scope(change.new));
        let both = || old.iter().chain(&new);
        if both().any(|scope| !scope.is_for_mesh) {
            // Their Gateways' conditions name it.
            index.mark_all_gateways_stale();
        }
        // With a host its other VirtualServices are judged.
        let hosts: BTreeSet<ArcStr> = both()
            .flat_map(VirtualServiceScope::hosts)
            .cloned()
            .collect();
        for host in &hosts {
            index.mark_only_host_stale(host.clone());
        }
        let hosts = |scope: Option<&VirtualServiceScope>| -> Vec<ArcStr> {
            let scope = scope.into_iter();
            scope
                .flat_map(VirtualServiceScope::hosts)
                .cloned()
                .collect()
        };
        let all = (hosts(old.as_ref()), hosts(new.as_ref()));
        index
            .view
            .references
            .replace(ReferenceKind::VirtualServiceHost, change.key, all.0, all.1);
        let catches_all = |scope: &&VirtualServiceScope| scope.has_catch_all_rule;
        let old = hosts(old.as_ref().filter(catches_all));
        let new = hosts(new.as_ref().filter(catches_all));
        index
            .view
            .references
            .replace(ReferenceKind::CatchAllHost, change.key, old, new);
    }
}

impl MeshView {
    /// Returns the HTTPRoutes and GRPCRoutes of a service, with the clients that a waypoint applies each to.
    fn preceding_routes(
        &self,
        target: &ObjectKey,
        gateway: &GatewayName,
    ) -> Vec<PrecedingRoute<'_>> {
        let http = self.routes_of(target);
        let http = http.filter(|route| matches!(route.rules, RouteRules::Http(_)));
        let preceding_routes = http.filter_map(|route| {
            Some(PrecedingRoute {
                name: &route.name,
                client_namespace: route.consumer_namespace(target, gateway),
                ports: route.applicable_ports(self, target)?,
            })
        });
        preceding_routes.collect()
    }

    /// Groups the VirtualServices that a waypoint applies to a host of a service by the clients that they are for.
    fn client_groups(
        &self,
        host: &ArcStr,
        target: &ObjectKey,
        gateway: &GatewayName,
    ) -> Vec<ClientGroup<'_>> {
        let services = self
            .references
            .referrers(ReferenceKind::VirtualServiceHost, host);
        let services = services.filter_map(|key| self.route(key));
        let services = services.filter(|one| one.is_applied_by(target, gateway));
        let mut services: Vec<_> = services.collect();
        services.sort_by_key(|one| one.precedence_key());
        let (of_all, of_own): (Vec<_>, Vec<_>) = services
            .into_iter()
            .partition(|one| one.is_producer_route(target, gateway));
        let mut own = BTreeMap::<ArcStr, Vec<&RouteInput>>::new();
        for one in of_own {
            own.entry(one.namespace().clone()).or_default().push(one);
        }
        let scopes = of_all.iter().flat_map(|one| one.match_scopes());
        let named: BTreeSet<ArcStr> = scopes.filter_map(|one| one.namespace.clone()).collect();
        let named = named.into_iter().filter(|one| !own.contains_key(one));
        let of_all = [None]
            .into_iter()
            .chain(named.map(Some))
            .map(|clients| ClientGroup {
                client_namespace: clients,
                is_for_all_clients: true,
                virtual_services: of_all.clone(),
            });
        let of_all: Vec<_> = of_all.collect();
        let own = own.into_iter().map(|(namespace, services)| ClientGroup {
            client_namespace: Some(namespace),
            is_for_all_clients: false,
            virtual_services: services,
        });
        of_all.into_iter().chain(own).collect()
    }

    /// Renders the VirtualServices that a waypoint applies to a host of a service, by precedence: the oldest first,
    /// then by name.
    pub(crate) fn render_virtual_routes(
        &self,
        host: &ArcStr,
        target: &ObjectKey,
        gateway: &GatewayName,
    ) -> Vec<HttpRoute> {
        let audiences = self.client_groups(host, target, gateway);
        if audiences.iter().all(|one| one.virtual_services.is_empty()) {
            return Vec::new();
        }
        let preceding_routes = self.preceding_routes(target, gateway);
        let declared = declared_ports(self, target).unwrap_or_default();
        let mut routes = Vec::new();
        for audience in &audiences {
            let ports = declared.iter().map(|(_, port, _)| *port);
            let free: Vec<u16> = ports
                .filter(|port| audience.has_free_port(&preceding_routes, *port))
                .collect();
            for route in &audience.virtual_services {
                let rules =
                    |port| self.render_virtual_rules(route, target, gateway, (port, audience));
                if !route.depends_on_port() && free.len() == declared.len() {
                    routes.extend(virtual_service_record(
                        route,
                        audience,
                        Vec::new(),
                        rules(None),
                    ));
                    continue;
                }
                let mut alike: Vec<(Vec<HttpRouteRule>, Vec<u16>)> = Vec::new();
                for port in &free {
                    let rules = rules(Some(*port));
                    match alike.iter_mut().find(|(others, _)| *others == rules) {
                        Some((_, ports)) => ports.push(*port),
                        None => alike.push((rules, vec![*port])),
                    }
                }
                if let [(_, ports)] = alike.as_mut_slice()
                    && ports.len() == declared.len()
                {
                    // All of them.
                    ports.clear();
                }
                let records = alike.into_iter();
                routes.extend(records.filter_map(|(rules, ports)| {
                    virtual_service_record(route, audience, ports, rules)
                }));
            }
        }
        routes
    }

    /// Renders the rules of a VirtualService that apply to the requests of an audience to one port.
    fn render_virtual_rules(
        &self,
        route: &RouteInput,
        target: &ObjectKey,
        gateway: &GatewayName,
        (port, audience): (Option<u16>, &ClientGroup<'_>),
    ) -> Vec<HttpRouteRule> {
        let attached = AttachedRoute {
            route,
            parent: target,
            port,
        };
        let is_within = |scope: &MatchScope| {
            scope.port.is_none_or(|of| Some(of) == port)
                && (scope.namespace.is_none() || scope.namespace == audience.client_namespace)
        };
        let rule = |rule: &RouteRuleInput| {
            let scopes = rule.match_scopes.iter();
            let matches: Vec<HttpRouteMatch> = scopes
                .zip(&rule.matches)
                .filter(|(scope, _)| is_within(scope))
                .map(|(_, of)| of.clone())
                .collect();
            if matches.is_empty() && !rule.matches.is_empty() {
                return None;
            }
            let resolved = rule.render(self, attached, gateway);
            Some(HttpRouteRule {
                matches,
                ..resolved
            })
        };
        route.http_rules().iter().filter_map(rule).collect()
    }
}

impl ClientGroup<'_> {
    /// Whether no Gateway API route takes precedence over the VirtualServices on a port, for these clients.
    fn has_free_port(&self, preceding_routes: &[PrecedingRoute<'_>], port: u16) -> bool {
        let mut preceding_routes = preceding_routes.iter();
        !preceding_routes.any(|rival| {
            rival.precedes(self.client_namespace.as_ref(), port)
                || self.is_for_all_clients && rival.precedes(None, port)
        })
    }
}

impl PrecedingRoute<'_> {
    /// Whether the route takes precedence on a port over VirtualServices for the same clients.
    fn precedes(&self, clients: Option<&ArcStr>, port: u16) -> bool {
        self.client_namespace.as_ref() == clients
            && (self.ports.is_empty() || self.ports.contains(&port))
    }
}

/// Builds the record of a VirtualService; `None` if no rule applies to the clients.
fn virtual_service_record(
    route: &RouteInput,
    audience: &ClientGroup<'_>,
    ports: Vec<u16>,
    rules: Vec<HttpRouteRule>,
) -> Option<HttpRoute> {
    (!rules.is_empty()).then(|| HttpRoute {
        name: route.name.clone(),
        ports,
        rules,
        clients: audience.client_namespace.clone(),
        first_match: true,
        of_service: audience.is_for_all_clients && audience.client_namespace.is_some(),
    })
}
