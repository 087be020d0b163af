//! Authorization at a waypoint: which policy decides a request or a connection, and why.
//!
//! DENY policies are evaluated first, then ALLOW policies; where no ALLOW policy applies, requests that are not denied
//! are allowed. AUDIT and dry-run policies are only reported. A policy is attached to the whole waypoint or to
//! services. A policy that cannot be decoded denies every request to its targets. Before all of that, CUSTOM policies
//! select the requests for an ext_authz check ([`Policies::required_check`]).
//!
//! A request that a route forwards to another service is authorized for that backend as well ([`Scope::Backend`]): by
//! the service's own policies, since those for the whole waypoint have authorized the original request. Where the
//! service has ALLOW policies, one of them, or one of the whole waypoint, must match the forwarded request, as for a
//! direct request to it.
//!
//! **A request to a pod** is authorized as a request to each service port that forwards to it
//! ([`Scope::Pod`]): by the policies of all these services, each of which has to allow it, at the
//! address where clients call the service. A rule of the whole waypoint matches at that address or
//! at the pod's own. The addresses of a service have no influence on the policies that are attached
//! to it.
//!
//! **Where servers may read a text differently**, a denial applies if any reading matches, and a permission or an
//! exception from a denial only if all readings match: `crate::readings` has the table.
//!
//! **Connections that are not HTTP** have no hosts, methods, paths or headers: a rule of an ALLOW policy with these
//! fields does not match; in DENY and AUDIT policies these fields are ignored, so that the rule denies more.

use std::{collections::HashMap, net::SocketAddr, sync::Arc};

use ambit_model::{HttpAction, HttpPolicy, NamespacedHostname, PolicyKey};
use http::HeaderName;

mod attributes;
mod compiled;
mod decision;
mod explain;
mod matcher;
mod required_check;

#[cfg(any(test, feature = "testing"))]
pub mod naive;
#[cfg(test)]
mod tests;

pub use attributes::{Connection, Request};
pub use decision::{DecisionReason, DryRunDenial, HttpDecision, RuleId};
pub use explain::{HttpExplanation, PolicyOutcome};
pub use required_check::RequiredCheck;

use attributes::PolicyAttributes;
use compiled::CompiledPolicy;

/// A port of a service, at the address where clients call it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Name of the service.
    pub service: NamespacedHostname,
    /// Address at which clients call the service port: the service's first address, or the pod's.
    pub address: SocketAddr,
}

/// Target of a request, which selects the policies that apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope<'a> {
    /// Service that was called at one of its ports.
    Service(&'a NamespacedHostname),
    /// Pod that was called at its own address, with the service ports that forward to the called port.
    Pod(&'a [ServicePort]),
    /// Backend of a route, for a request that has been authorized for another service.
    Backend(&'a NamespacedHostname),
}

/// Authorization policies of a waypoint. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    policies_by_key: HashMap<PolicyKey, Arc<CompiledPolicy>>,
    waypoint_policies: ScopePolicies,
    service_policies: HashMap<NamespacedHostname, ScopePolicies>,
}

/// Policies of one scope, grouped by action, each group sorted by name.
#[derive(Clone, Debug, Default)]
struct ScopePolicies {
    deny: Vec<Arc<CompiledPolicy>>,
    allow: Vec<Arc<CompiledPolicy>>,
    audit: Vec<Arc<CompiledPolicy>>,
    custom: Vec<Arc<CompiledPolicy>>,
    dry_run: Vec<Arc<CompiledPolicy>>,
}

impl ScopePolicies {
    fn group_mut(&mut self, policy: &CompiledPolicy) -> &mut Vec<Arc<CompiledPolicy>> {
        match policy.action() {
            HttpAction::Audit => &mut self.audit,
            _ if policy.is_dry_run() => &mut self.dry_run,
            HttpAction::Deny => &mut self.deny,
            HttpAction::Allow => &mut self.allow,
            HttpAction::Custom => &mut self.custom,
        }
    }

    fn insert(&mut self, policy: &Arc<CompiledPolicy>) {
        let list = self.group_mut(policy);
        let at = list.partition_point(|other| other.key() < policy.key());
        // A policy may name a service twice.
        if list.get(at).is_none_or(|other| other.key() != policy.key()) {
            list.insert(at, policy.clone());
        }
    }

    fn remove(&mut self, policy: &CompiledPolicy) {
        let key = policy.key();
        self.group_mut(policy).retain(|other| other.key() != key);
    }

    fn is_empty(&self) -> bool {
        self.all().next().is_none()
    }

    fn all(&self) -> impl Iterator<Item = &Arc<CompiledPolicy>> {
        let Self {
            deny,
            allow,
            audit,
            custom,
            dry_run,
        } = self;
        [deny, allow, audit, custom, dry_run].into_iter().flatten()
    }
}

impl Policies {
    /// Inserts a policy, or replaces the policy with the same key. Returns false if it is unchanged.
    pub fn insert(&mut self, policy: HttpPolicy) -> bool {
        if self
            .policies_by_key
            .get(&policy.key)
            .map(|known| known.policy())
            == Some(&policy)
        {
            return false;
        }
        let key = policy.key.clone();
        self.remove(&key);
        let policy = Arc::new(CompiledPolicy::new(policy));
        self.for_each_scope(&policy, |bucket| bucket.insert(&policy));
        self.policies_by_key.insert(key, policy);
        true
    }

    /// Removes the policy with this key. Returns false if there is none.
    pub fn remove(&mut self, key: &PolicyKey) -> bool {
        let Some(policy) = self.policies_by_key.remove(key) else {
            return false;
        };
        self.for_each_scope(&policy, |bucket| bucket.remove(&policy));
        for service in &policy.policy().services {
            if self
                .service_policies
                .get(service)
                .is_some_and(ScopePolicies::is_empty)
            {
                self.service_policies.remove(service);
            }
        }
        true
    }

    /// Iterates over all policies, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &HttpPolicy> {
        self.policies_by_key.values().map(|policy| policy.policy())
    }

    /// Whether authorization in the scope needs parsed HTTP requests: a policy matches request attributes, or requires
    /// an ext_authz check.
    pub fn needs_http(&self, scope: Scope<'_>) -> bool {
        self.first_http_policy(scope).is_some()
    }

    /// Returns the first policy in the scope that makes [`Self::needs_http`] true.
    pub fn first_http_policy(&self, scope: Scope<'_>) -> Option<&PolicyKey> {
        self.policies_in_scope(scope).find_map(|bucket| {
            let mut judging = bucket.deny.iter().chain(&bucket.allow);
            let found = judging.find(|policy| policy.needs_http());
            found
                .or_else(|| bucket.custom.first())
                .map(|policy| policy.key())
        })
    }

    /// Whether a policy in the scope reads a header of this name, in any spelling.
    pub fn reads_header(&self, scope: Scope<'_>, name: &HeaderName) -> bool {
        let mut all = self.policies_in_scope(scope).flat_map(ScopePolicies::all);
        all.any(|policy| policy.reads_header(name))
    }

    /// Whether policies are attached to this service, rather than to the whole waypoint.
    pub fn has_service_policies(&self, service: &NamespacedHostname) -> bool {
        self.service_policies.contains_key(service)
    }

    /// Evaluates the policies of a scope for a request.
    pub fn evaluate(&self, scope: Scope<'_>, request: &Request<'_>) -> HttpDecision {
        self.decide(scope, PolicyAttributes::from_request(request))
    }

    /// Evaluates the policies of a scope for a connection that is not HTTP.
    pub fn evaluate_connection(
        &self,
        scope: Scope<'_>,
        connection: &Connection<'_>,
    ) -> HttpDecision {
        self.decide(scope, PolicyAttributes::from_connection(connection))
    }

    fn decide(&self, scope: Scope<'_>, mut facts: PolicyAttributes<'_>) -> HttpDecision {
        let Scope::Pod(ports @ [_, ..]) = scope else {
            let findings = self.match_policies(scope, &facts);
            return self.enforced_decision(scope, &facts, findings);
        };
        let waypoint = Scope::Pod(&[]);
        let own = self.match_policies(waypoint, &facts);
        let allowed = own.allowing_rule.clone();
        let mut decision = HttpDecision {
            reason: own.denial().unwrap_or(DecisionReason::NoAllowPolicies),
            // Only the services' ALLOW policies decide what is allowed.
            dry_run_denials: self.dry_run_denials(waypoint, &facts, true),
            matched_audit_rules: own.audits,
        };
        for port in ports {
            facts.set_destination(port.address);
            let scope = Scope::Service(&port.service);
            let mut findings = self.match_policies(scope, &facts);
            findings.allowing_rule = findings.allowing_rule.or_else(|| allowed.clone());
            decision.merge(self.enforced_decision(scope, &facts, findings));
        }
        decision
    }

    /// Collects the policies of a scope that match a request or connection.
    fn match_policies(
        &self,
        scope: Scope<'_>,
        facts: &PolicyAttributes<'_>,
    ) -> MatchedPolicies<'_> {
        let mut findings = MatchedPolicies::default();
        for bucket in self.policies_in_scope(scope) {
            if findings.denying_rule.is_none() {
                findings.denying_rule = first_match(&bucket.deny, facts);
            }
            if findings.allowing_rule.is_none() {
                findings.allowing_rule = first_match(&bucket.allow, facts).map(|(_, rule)| rule);
            }
            findings.has_allow_policy |= !bucket.allow.is_empty();
            let matching = bucket
                .audit
                .iter()
                .filter_map(|p| matching_rule_id(p, facts));
            findings.audits.extend(matching.map(|(_, rule)| rule));
        }
        if findings.allowing_rule.is_none() && matches!(scope, Scope::Backend(_)) {
            let allowed = first_match(&self.waypoint_policies.allow, facts);
            findings.allowing_rule = allowed.map(|(_, rule)| rule);
        }
        findings
    }

    fn enforced_decision(
        &self,
        scope: Scope<'_>,
        facts: &PolicyAttributes<'_>,
        findings: MatchedPolicies<'_>,
    ) -> HttpDecision {
        let is_admitted = findings.allowing_rule.is_some();
        let why = findings.denial().unwrap_or(match findings.allowing_rule {
            Some(rule) => DecisionReason::AllowedByRule(rule),
            None if findings.has_allow_policy => DecisionReason::NoAllowPolicyMatched,
            None => DecisionReason::NoAllowPolicies,
        });
        HttpDecision {
            reason: why,
            dry_run_denials: self.dry_run_denials(scope, facts, is_admitted),
            matched_audit_rules: findings.audits,
        }
    }

    /// Returns the dry-run policies of a scope that would deny the request if they were enforced.
    fn dry_run_denials(
        &self,
        scope: Scope<'_>,
        facts: &PolicyAttributes<'_>,
        is_admitted: bool,
    ) -> Vec<DryRunDenial> {
        let policies = || {
            self.policies_in_scope(scope)
                .flat_map(|bucket| &bucket.dry_run)
        };
        let (mut deny, mut none_allows) = (Vec::new(), Vec::new());
        let mut is_admitted = is_admitted;
        for policy in policies() {
            match (policy.action(), policy.matching_rule(facts)) {
                (HttpAction::Allow, Some(_)) => is_admitted = true,
                (HttpAction::Allow, None) => {
                    none_allows.push(DryRunDenial::new(policy.key(), None))
                }
                // A dry run calls no provider, so its decision is unknown.
                (HttpAction::Custom, _) => {}
                (_, Some(rule)) => deny.push(DryRunDenial::new(policy.key(), Some(rule))),
                (_, None) => {}
            }
        }
        if !is_admitted {
            deny.append(&mut none_allows);
        }
        deny
    }

    fn policies_in_scope(&self, scope: Scope<'_>) -> impl Iterator<Item = &ScopePolicies> {
        let (gateway, service, ports): (_, _, &[ServicePort]) = match scope {
            Scope::Service(service) => (Some(&self.waypoint_policies), Some(service), &[]),
            Scope::Pod(ports) => (Some(&self.waypoint_policies), None, ports),
            Scope::Backend(service) => (None, Some(service), &[]),
        };
        let services = service
            .into_iter()
            .chain(ports.iter().map(|port| &port.service));
        let of_services = services.filter_map(|service| self.service_policies.get(service));
        gateway.into_iter().chain(of_services)
    }

    fn for_each_scope(
        &mut self,
        policy: &CompiledPolicy,
        mut change: impl FnMut(&mut ScopePolicies),
    ) {
        if policy.policy().for_gateway {
            return change(&mut self.waypoint_policies);
        }
        for service in &policy.policy().services {
            change(self.service_policies.entry(service.clone()).or_default());
        }
    }
}

/// Policies of a scope that match a request or a connection.
#[derive(Default)]
struct MatchedPolicies<'a> {
    denying_rule: Option<(&'a CompiledPolicy, RuleId)>,
    allowing_rule: Option<RuleId>,
    /// Whether the scope has any enforced ALLOW policy, matching or not.
    has_allow_policy: bool,
    audits: Vec<RuleId>,
}

impl MatchedPolicies<'_> {
    fn denial(&self) -> Option<DecisionReason> {
        let (policy, rule) = self.denying_rule.as_ref()?;
        Some(match policy.decode_error() {
            Some(why) => DecisionReason::InvalidPolicy {
                policy: rule.policy.clone(),
                why: why.clone(),
            },
            None => DecisionReason::DeniedByRule(rule.clone()),
        })
    }
}

fn first_match<'a>(
    policies: &'a [Arc<CompiledPolicy>],
    facts: &PolicyAttributes<'_>,
) -> Option<(&'a CompiledPolicy, RuleId)> {
    policies
        .iter()
        .find_map(|policy| matching_rule_id(policy, facts))
}

fn matching_rule_id<'a>(
    policy: &'a CompiledPolicy,
    facts: &PolicyAttributes<'_>,
) -> Option<(&'a CompiledPolicy, RuleId)> {
    let rule = policy.matching_rule(facts)?;
    Some((policy, RuleId::new(policy.key(), rule)))
}
