//! Waypoints that call services on their own: authorization providers, telemetry collectors, and any host that a plugin
//! names. So that none of these calls is in plaintext, all waypoints receive the destinations of services with TLS
//! origination; other destinations are sent only to waypoints that forward requests to the service.

use std::collections::BTreeSet;

use ambit_k8s_api::{BackendTLSPolicy, DestinationRule, ObjectKey};
use ambit_model::{ArcStr, GatewayName, NamespacedHostname};

use crate::{
    index::Index,
    kinds::{backend_tls_policy::BackendTls, destination_rule::host_patterns},
    objects::{
        backend_tls_policy::input::BackendTlsInput, destination_rule::input::DestinationRuleInput,
    },
    relations::references::ReferenceKind,
    view::MeshView,
};

impl MeshView {
    /// Returns all waypoints if a DestinationRule or one of `policies` originates TLS to a host, none otherwise.
    pub(crate) fn waypoints_originating_tls(
        &self,
        host: &str,
        policies: &[BackendTls],
    ) -> impl Iterator<Item = &GatewayName> {
        let is_told =
            !policies.is_empty() || host_patterns(host).any(|one| self.originates_tls(&one));
        let all = is_told.then(|| self.all_waypoints());
        all.into_iter().flatten()
    }

    /// Whether any DestinationRule with exactly this host pattern originates TLS.
    fn originates_tls(&self, pattern: &ArcStr) -> bool {
        let rules = self
            .references
            .referrers(ReferenceKind::DestinationRuleHost, pattern);
        let mut rules = rules.filter_map(|key| self.get::<DestinationRule>(key));
        rules.any(DestinationRuleInput::originates_tls)
    }

    /// Whether the DestinationRule that a waypoint applies to a service originates TLS.
    pub(crate) fn waypoint_originates_tls(
        &self,
        gateway: &GatewayName,
        service: &NamespacedHostname,
    ) -> bool {
        let rule = self.rule_for(service, gateway);
        rule.is_some_and(DestinationRuleInput::originates_tls)
    }

    /// Returns the hosts for which some DestinationRule originates TLS.
    pub(crate) fn hosts_with_tls(&self) -> BTreeSet<ArcStr> {
        let patterns = self
            .references
            .referenced_names(ReferenceKind::DestinationRuleHost);
        let patterns = patterns.filter(|pattern| self.originates_tls(pattern));
        patterns
            .flat_map(|pattern| self.hosts_matching(pattern))
            .collect()
    }
}

impl Index {
    /// Marks as stale the hosts to which TLS is originated, after the set of waypoints changed.
    pub(crate) fn mark_tls_hosts_stale(&mut self) {
        let policies = self
            .view
            .references
            .mesh_referrers(ReferenceKind::BackendTlsPolicy);
        let policies =
            policies.filter_map(|key: &ObjectKey| self.view.get::<BackendTLSPolicy>(key));
        let targets = policies.flat_map(BackendTlsInput::targets);
        let of_policies = targets.flat_map(|target| self.view.hosts_of(target));
        let mut hosts: BTreeSet<ArcStr> = of_policies.collect();
        hosts.append(&mut self.view.hosts_with_tls());
        for host in hosts {
            self.mark_only_host_stale(host);
        }
    }
}
