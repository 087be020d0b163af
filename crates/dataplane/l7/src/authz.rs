//! Authorization at a waypoint: which policy decides a request or a connection, and why.
//!
//! DENY policies first, then ALLOW; where no ALLOW policy applies, what is not denied is allowed. AUDIT and
//! dry-run policies decide nothing; what they would have done is told. A policy applies to everything that
//! goes through the waypoint or to requests for its services; requests to pods see the former only. A policy
//! that is not understood denies everything that it is attached to. Before all of that, CUSTOM policies say which
//! requests a provider is asked about ([`Policies::asks`]).
//!
//! What a route leads to another service is judged as that one's backend as well ([`Scope::Backend`]): by the service's
//! own policies, since those for the whole waypoint have judged the request as it came. Where the service has ALLOW
//! policies, one of them must match what is sent, or one of the whole waypoint, as for a request that asks for it
//! directly.
//!
//! **Where texts can be read in several ways**, a comparison that would lead to a denial succeeds if any
//! reading matches, one that would lead to an admission only if the plain one does:
//!
//! - A path is compared as it is forwarded. To deny, also as [`crate::path::decoded`] has it: `/admin` in a
//!   DENY policy (or in `notPaths` of an ALLOW policy) also means `//admin`, `/admin;x` and `/%2Fadmin`.
//! - Several header lines of one name are joined with commas (those of `cookie` with semicolons), as Envoy does.
//!   To deny, any one line suffices as well; to admit, each of them must match as well, but for cookies.
//!
//! **Connections that are not HTTP** have no hosts, methods, paths or headers: a rule of an ALLOW policy that
//! asks for them does not match; in DENY and AUDIT policies these parts of a rule are ignored, so that it
//! denies more.

use std::{collections::HashMap, sync::Arc};

use ambit_model::{HttpAction, HttpPolicy, NamespacedHostname, PolicyKey};

mod asking;
mod compiled;
mod decision;
mod facts;
mod matcher;
mod text;

#[cfg(any(test, feature = "testing"))]
pub mod naive;
#[cfg(test)]
mod tests;

pub use asking::Asking;
pub use decision::{DryRun, HttpDecision, RuleId, Why};
pub use facts::{Connection, Request};

use compiled::Compiled;
use facts::Facts;

/// What a request or a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope<'a> {
    /// A service.
    Service(&'a NamespacedHostname),
    /// A pod, by its own address.
    Pod,
    /// A service that a route leads to; what came was judged for another.
    Backend(&'a NamespacedHostname),
}

/// All policies of a waypoint. Copies share the policies themselves.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    all: HashMap<PolicyKey, Arc<Compiled>>,
    gateway: Bucket,
    services: HashMap<NamespacedHostname, Bucket>,
}

/// The policies of one scope, by what they do, each list in the order of names.
#[derive(Clone, Debug, Default)]
struct Bucket {
    deny: Vec<Arc<Compiled>>,
    allow: Vec<Arc<Compiled>>,
    audit: Vec<Arc<Compiled>>,
    custom: Vec<Arc<Compiled>>,
    dry_run: Vec<Arc<Compiled>>,
}

impl Bucket {
    fn list(&mut self, policy: &Compiled) -> &mut Vec<Arc<Compiled>> {
        match policy.action() {
            HttpAction::Audit => &mut self.audit,
            _ if policy.dry_run() => &mut self.dry_run,
            HttpAction::Deny => &mut self.deny,
            HttpAction::Allow => &mut self.allow,
            HttpAction::Custom => &mut self.custom,
        }
    }

    fn insert(&mut self, policy: &Arc<Compiled>) {
        let list = self.list(policy);
        let at = list.partition_point(|other| other.key() < policy.key());
        // It may name a service twice.
        if list.get(at).is_none_or(|other| other.key() != policy.key()) {
            list.insert(at, policy.clone());
        }
    }

    fn remove(&mut self, policy: &Compiled) {
        let key = policy.key();
        self.list(policy).retain(|other| other.key() != key);
    }

    fn is_empty(&self) -> bool {
        let Self {
            deny,
            allow,
            audit,
            custom,
            dry_run,
        } = self;
        [deny, allow, audit, custom, dry_run]
            .iter()
            .all(|l| l.is_empty())
    }
}

impl Policies {
    /// Puts a policy in force in place of what had its name. False if it is the same.
    pub fn insert(&mut self, policy: HttpPolicy) -> bool {
        if self.all.get(&policy.key).map(|known| known.policy()) == Some(&policy) {
            return false;
        }
        let key = policy.key.clone();
        self.remove(&key);
        let policy = Arc::new(Compiled::new(policy));
        self.for_each_bucket(&policy, |bucket| bucket.insert(&policy));
        self.all.insert(key, policy);
        true
    }

    /// Lifts a policy. False if there is none of that name.
    pub fn remove(&mut self, key: &PolicyKey) -> bool {
        let Some(policy) = self.all.remove(key) else {
            return false;
        };
        self.for_each_bucket(&policy, |bucket| bucket.remove(&policy));
        for service in &policy.policy().services {
            if self.services.get(service).is_some_and(Bucket::is_empty) {
                self.services.remove(service);
            }
        }
        true
    }

    /// What is in force, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &HttpPolicy> {
        self.all.values().map(|policy| policy.policy())
    }

    /// Whether requests must be understood as HTTP to judge them: a policy applies that looks at more than
    /// the connection.
    pub fn need_http(&self, scope: Scope<'_>) -> bool {
        self.buckets(scope)
            .flat_map(|bucket| {
                bucket
                    .deny
                    .iter()
                    .chain(&bucket.allow)
                    .chain(&bucket.custom)
            })
            .any(|policy| policy.needs_http())
    }

    /// Whether policies are attached to a service itself.
    pub fn has_own(&self, service: &NamespacedHostname) -> bool {
        self.services.contains_key(service)
    }

    /// Decides a request.
    pub fn evaluate(&self, scope: Scope<'_>, request: &Request<'_>) -> HttpDecision {
        self.decide(scope, &Facts::of_request(request))
    }

    /// Decides a connection that is not HTTP.
    pub fn evaluate_connection(
        &self,
        scope: Scope<'_>,
        connection: &Connection<'_>,
    ) -> HttpDecision {
        self.decide(scope, &Facts::of_connection(connection))
    }

    fn decide(&self, scope: Scope<'_>, facts: &Facts<'_>) -> HttpDecision {
        let mut has_allow = false;
        let mut allowed_by = None;
        let mut denied_by = None;
        let mut audits = Vec::new();
        for bucket in self.buckets(scope) {
            denied_by = denied_by.or_else(|| first_match(&bucket.deny, facts));
            allowed_by = allowed_by.or_else(|| first_match(&bucket.allow, facts));
            has_allow |= !bucket.allow.is_empty();
            let matching = bucket.audit.iter().filter_map(|p| matched(p, facts));
            audits.extend(matching.map(|(_, rule)| rule));
        }
        if let Scope::Backend(_) = scope {
            allowed_by = allowed_by.or_else(|| first_match(&self.gateway.allow, facts));
        }
        let is_admitted = allowed_by.is_some();
        let why = match (denied_by, allowed_by) {
            (Some((policy, rule)), _) => match policy.not_understood() {
                Some(why) => Why::NotUnderstood {
                    policy: rule.policy,
                    why: why.clone(),
                },
                None => Why::Denied(rule),
            },
            (None, Some((_, rule))) => Why::Allowed(rule),
            (None, None) if has_allow => Why::NoneAllows,
            (None, None) => Why::NoAllowPolicies,
        };
        HttpDecision {
            why,
            dry_run: self.dry_run(scope, facts, is_admitted),
            audits,
        }
    }

    /// The dry-run policies that would deny, if they and the others were in force.
    fn dry_run(&self, scope: Scope<'_>, facts: &Facts<'_>, is_admitted: bool) -> Vec<DryRun> {
        let policies = || self.buckets(scope).flat_map(|bucket| &bucket.dry_run);
        let (mut deny, mut none_allows) = (Vec::new(), Vec::new());
        let mut is_admitted = is_admitted;
        for policy in policies() {
            match (policy.action(), policy.matching_rule(facts)) {
                (HttpAction::Allow, Some(_)) => is_admitted = true,
                (HttpAction::Allow, None) => none_allows.push(DryRun::new(policy.key(), None)),
                // On trial nobody is asked, and what would be answered is not known.
                (HttpAction::Custom, _) => {}
                (_, Some(rule)) => deny.push(DryRun::new(policy.key(), Some(rule))),
                (_, None) => {}
            }
        }
        if !is_admitted {
            deny.append(&mut none_allows);
        }
        deny
    }

    fn buckets(&self, scope: Scope<'_>) -> impl Iterator<Item = &Bucket> {
        let (gateway, service) = match scope {
            Scope::Service(service) => (Some(&self.gateway), Some(service)),
            Scope::Pod => (Some(&self.gateway), None),
            Scope::Backend(service) => (None, Some(service)),
        };
        let of_service = service.and_then(|service| self.services.get(service));
        gateway.into_iter().chain(of_service)
    }

    fn for_each_bucket(&mut self, policy: &Compiled, mut change: impl FnMut(&mut Bucket)) {
        if policy.policy().for_gateway {
            return change(&mut self.gateway);
        }
        for service in &policy.policy().services {
            change(self.services.entry(service.clone()).or_default());
        }
    }
}

fn first_match<'a>(
    policies: &'a [Arc<Compiled>],
    facts: &Facts<'_>,
) -> Option<(&'a Compiled, RuleId)> {
    policies.iter().find_map(|policy| matched(policy, facts))
}

fn matched<'a>(policy: &'a Compiled, facts: &Facts<'_>) -> Option<(&'a Compiled, RuleId)> {
    let rule = policy.matching_rule(facts)?;
    Some((policy, RuleId::new(policy.key(), rule)))
}
