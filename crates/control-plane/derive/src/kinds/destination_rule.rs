//! DestinationRules: how waypoints treat the endpoints of services.
//!
//! A waypoint applies one rule to a service: the first that is found in the service's namespace, the waypoint's, or the
//! root namespace, among rules exported to the waypoint's namespace. Within a namespace, a rule for the exact host
//! takes precedence over wildcards, a longer wildcard over a shorter one, and the oldest over others for the same host.
//! (Istio begins with the client's namespace, which for Istio is that of the proxy; a waypoint acts for the server.)

pub(crate) mod conditions;
pub(crate) mod subsets;

use std::collections::BTreeSet;

use ambit_k8s_api::{DestinationRule, ObjectKey};
use ambit_model::{ArcStr, GatewayName, NamespacedHostname, WaypointDestination};

use crate::{
    condition::{ConditionType, DESTINATION_RULE_USED, DerivedStatus},
    index::{Index, change::Change},
    kinds::kind::MeshKind,
    objects::destination_rule::{input::DestinationRuleInput, originates_tls},
    pod_directory::PodDirectory,
    relations::references::ReferenceKind,
    view::MeshView,
};

impl MeshKind for DestinationRule {
    const CONDITIONS: &'static [ConditionType] = &[DESTINATION_RULE_USED];

    fn derived_status(
        view: &MeshView,
        _: &ObjectKey,
        rule: &DestinationRuleInput,
    ) -> Option<DerivedStatus> {
        Some(conditions::derived_status(view, rule))
    }

    fn on_change(
        index: &mut Index,
        change: &Change<'_, DestinationRuleInput>,
        _: &mut PodDirectory,
    ) {
        let host = |rule: Option<&DestinationRuleInput>| rule.map(|rule| rule.host.clone());
        let (old, new) = (host(change.old), host(change.new));
        index.view.references.replace(
            ReferenceKind::DestinationRuleHost,
            change.key,
            old.clone(),
            new.clone(),
        );
        index.mark_object_stale(change.key.clone());
        let of_both = change.both_versions().flat_map(|rule| rule.subsets.keys());
        let has_subsets = of_both.count() > 0;
        let has_some = change.new.is_some_and(|rule| !rule.subsets.is_empty());
        index.view.references.set_mesh_reference(
            ReferenceKind::RuleWithSubsets,
            change.key,
            has_some,
        );
        for pattern in old.into_iter().chain(new) {
            // Others for the same may be followed in its place.
            let rivals: Vec<_> = index
                .view
                .references
                .referrers(ReferenceKind::DestinationRuleHost, &pattern)
                .cloned()
                .collect();
            for rival in rivals {
                index.mark_object_stale(rival);
            }
            for host in index.view.hosts_matching(&pattern) {
                let objects_declaring: Vec<_> =
                    index.view.objects_declaring(&host).cloned().collect();
                index.mark_host_stale(host);
                // Routes may have its subsets as backends.
                for key in objects_declaring.iter().filter(|_| has_subsets) {
                    index.mark_backend_routes_stale(key);
                }
            }
        }
    }
}

impl DestinationRuleInput {
    fn render_destination(
        &self,
        view: &MeshView,
        key: &ObjectKey,
        service: NamespacedHostname,
    ) -> WaypointDestination {
        let subsets = self.subsets.iter();
        WaypointDestination {
            service,
            policy: self.policy.clone(),
            ports: self.ports.clone(),
            subsets: subsets
                .map(|(name, subset)| (name.clone(), subset.resolve_subset(view, key)))
                .collect(),
        }
    }
}

/// Returns the values of a rule's `host` that match a host, the most specific first.
pub(crate) fn host_patterns(host: &str) -> impl Iterator<Item = ArcStr> {
    let dots = host.match_indices('.').map(|(at, _)| at);
    let ends = dots.filter_map(|at| host.get(at..));
    let wildcards = ends.map(|end| arcstr::format!("*{end}"));
    let exact = std::iter::once(ArcStr::from(host));
    exact.chain(wildcards).chain([arcstr::literal!("*")])
}

impl MeshView {
    /// Returns the rule that a waypoint applies to a service.
    pub(crate) fn rule_for(
        &self,
        service: &NamespacedHostname,
        gateway: &GatewayName,
    ) -> Option<&DestinationRuleInput> {
        let root = &self.config.root_namespace;
        let namespaces = [&service.namespace, &gateway.namespace, root];
        namespaces.into_iter().find_map(|namespace| {
            host_patterns(&service.hostname).find_map(|pattern| {
                let rules = self
                    .references
                    .referrers(ReferenceKind::DestinationRuleHost, &pattern);
                let rules = rules.filter(|key| key.namespace == *namespace);
                let rules = rules.filter_map(|key| self.get::<DestinationRule>(key));
                let seen = rules.filter(|rule| rule.is_visible_to(gateway));
                seen.min_by(|a, b| a.precedence_key().cmp(&b.precedence_key()))
            })
        })
    }

    /// Whether the rule that a waypoint applies to a service has a subset of this name.
    pub(crate) fn has_subset(
        &self,
        service: &NamespacedHostname,
        gateway: &GatewayName,
        subset: &str,
    ) -> bool {
        let rule = self.rule_for(service, gateway);
        rule.is_some_and(|rule| rule.subsets.contains_key(subset))
    }

    /// Renders the destination of an object's host for each waypoint that forwards requests to it, and for waypoints
    /// that may call it on their own (see [`super::callers`]).
    pub(crate) fn render_destinations(
        &self,
        key: &ObjectKey,
        host: &ArcStr,
    ) -> Vec<(GatewayName, WaypointDestination)> {
        if !self.has_destinations() {
            return Vec::new();
        }
        let service = NamespacedHostname::new(key.namespace.clone(), host.clone());
        let tls = self.backend_tls(key);
        let destination_of = |gateway: &GatewayName| {
            let rule = self.rule_for(&service, gateway);
            let destination = rule.map(|rule| rule.render_destination(self, key, service.clone()));
            let mut destination = match destination {
                Some(destination) => destination,
                None if tls.is_empty() => return None,
                None => WaypointDestination::without_policy(service.clone()),
            };
            for one in &tls {
                one.override_tls(&mut destination);
            }
            Some(destination)
        };
        let reaching = self.waypoints_reaching(key, host);
        let callers = self
            .waypoints_originating_tls(host, &tls)
            .filter(|one| !reaching.contains(one));
        let callers = callers.filter_map(|one| Some((one.clone(), destination_of(one)?)));
        let callers: Vec<_> = callers
            .filter(|(_, destination)| originates_tls(&destination.policy, &destination.ports))
            .collect();
        let served = reaching
            .iter()
            .filter_map(|one| Some((one.clone(), destination_of(one)?)));
        served.chain(callers).collect()
    }

    /// Whether the mesh has any DestinationRule or BackendTLSPolicy.
    fn has_destinations(&self) -> bool {
        let mut rules = self
            .references
            .referenced_names::<ArcStr>(ReferenceKind::DestinationRuleHost);
        let mut policies = self
            .references
            .mesh_referrers(ReferenceKind::BackendTlsPolicy);
        rules.next().is_some() || policies.next().is_some()
    }

    /// Returns the waypoints that forward requests to a host of an object: those that serve it, and those with a route
    /// that has it as backend.
    pub(crate) fn waypoints_reaching(
        &self,
        key: &ObjectKey,
        host: &ArcStr,
    ) -> BTreeSet<GatewayName> {
        let mut gateways = self.waypoints_serving(key, host);
        let by_name = self
            .references
            .referrers(ReferenceKind::RouteHost, host)
            .filter(|route| {
                let route = self.route(route);
                route.is_some_and(|route| self.host_owner_in(route.namespace(), host) == Some(key))
            });
        for route in self
            .references
            .referrers(ReferenceKind::RouteBackend, key)
            .chain(by_name)
        {
            for (target, host) in self.services_routed_by(route) {
                gateways.extend(self.waypoints_serving(&target, &host));
            }
        }
        gateways
    }
}

impl Index {
    /// Marks as stale the backends of an object's routes, since other waypoints may now forward requests to them.
    pub(crate) fn mark_route_backends_stale(&mut self, parent: &ObjectKey) {
        if !self.view.has_destinations() {
            return;
        }
        let hosts = self.view.hosts_of(parent);
        let by_host = hosts.iter().flat_map(|host| {
            self.view
                .references
                .referrers(ReferenceKind::VirtualServiceHost, host)
        });
        let routes = self
            .view
            .references
            .referrers(ReferenceKind::RouteParent, parent)
            .chain(by_host);
        let routes = routes.filter_map(|route| self.view.route(route));
        let routes: Vec<_> = routes.collect();
        let targets = routes.iter().flat_map(|route| route.referenced_objects());
        let targets: Vec<_> = targets.cloned().collect();
        let hosts = routes.iter().flat_map(|route| route.referenced_hosts());
        let hosts: Vec<_> = hosts.cloned().collect();
        for target in targets {
            self.mark_destinations_stale(&target);
        }
        for host in hosts {
            self.mark_host_rules_stale(&host);
            self.mark_only_host_stale(host);
        }
    }

    /// Marks as stale the hosts of an object, whose destinations may have changed, and the rules for them.
    pub(crate) fn mark_destinations_stale(&mut self, key: &ObjectKey) {
        for host in self.view.hosts_of(key) {
            self.mark_host_rules_stale(&host);
            self.mark_only_host_stale(host);
        }
    }

    /// Marks as stale the rules that may apply to a host, since their conditions list the waypoints that apply them.
    pub(crate) fn mark_host_rules_stale(&mut self, host: &str) {
        let rules: Vec<_> = host_patterns(host)
            .flat_map(|pattern| {
                self.view
                    .references
                    .referrers(ReferenceKind::DestinationRuleHost, &pattern)
                    .cloned()
                    .collect::<Vec<_>>()
            })
            .collect();
        for rule in rules {
            self.mark_object_stale(rule);
        }
    }
}
