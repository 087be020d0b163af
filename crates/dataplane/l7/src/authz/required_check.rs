//! Finds the ext_authz provider that must check a request or connection, by CUSTOM policies.
//!
//! All CUSTOM policies of a scope must name one provider: with several, or with one that cannot be called, everything
//! in the scope is denied, as in Istio. A request to a pod whose services name different providers is denied as well.

use std::sync::Arc;

use ambit_model::Provider;

use super::{
    CompiledPolicy, Connection, Policies, Request, RuleId, Scope, ServicePort,
    attributes::PolicyAttributes, first_match,
};

/// External check that CUSTOM policies require for a request or connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequiredCheck {
    /// No CUSTOM policy matches.
    NotRequired,
    /// Provider that must check, and the rule that requires it.
    CheckBy(Arc<Provider>, RuleId),
    /// Denial without a check, since the provider is missing or ambiguous; with the reason.
    Denied(String),
}

impl Policies {
    /// Returns the check that CUSTOM policies require for a request in its original form, before a provider changes it.
    pub fn required_check(&self, scope: Scope<'_>, request: &Request<'_>) -> RequiredCheck {
        self.find_required_check(scope, || PolicyAttributes::from_request(request))
    }

    /// Returns the check that CUSTOM policies require for a connection that is not HTTP.
    pub fn required_connection_check(
        &self,
        scope: Scope<'_>,
        connection: &Connection<'_>,
    ) -> RequiredCheck {
        self.find_required_check(scope, || PolicyAttributes::from_connection(connection))
    }

    fn find_required_check<'a>(
        &self,
        scope: Scope<'_>,
        facts: impl FnOnce() -> PolicyAttributes<'a>,
    ) -> RequiredCheck {
        let policies = || {
            self.policies_in_scope(scope)
                .flat_map(|bucket| &bucket.custom)
        };
        let mut first: Option<&Arc<Provider>> = None;
        for policy in policies() {
            let Some(provider) = policy.policy().provider.as_ref() else {
                return RequiredCheck::Denied(format!("policy {} names no provider", policy.key()));
            };
            if let Err(why) = &provider.target {
                return RequiredCheck::Denied(format!("provider {}: {why}", provider.name));
            }
            if let Some(first) = first.filter(|first| first.name != provider.name) {
                let (one, other) = (&first.name, &provider.name);
                return RequiredCheck::Denied(format!(
                    "policies name several providers, {one} and {other}"
                ));
            }
            first = Some(provider);
        }
        if first.is_none() {
            return RequiredCheck::NotRequired;
        }
        let mut facts = facts();
        let (of, ports): (_, &[ServicePort]) = match scope {
            Scope::Pod(ports) => (Scope::Pod(&[]), ports),
            other => (other, &[]),
        };
        let first = |scope, facts: &PolicyAttributes<'_>| {
            let mut buckets = self.policies_in_scope(scope);
            buckets.find_map(|bucket| first_match(&bucket.custom, facts))
        };
        let mut found = first(of, &facts);
        for port in ports {
            facts.set_destination(port.address);
            found = found.or_else(|| first(Scope::Service(&port.service), &facts));
        }
        match found {
            Some((policy, rule)) => check_for_rule(policy, rule),
            None => RequiredCheck::NotRequired,
        }
    }
}

fn check_for_rule(policy: &CompiledPolicy, rule: RuleId) -> RequiredCheck {
    match &policy.policy().provider {
        Some(provider) => RequiredCheck::CheckBy(provider.clone(), rule),
        None => RequiredCheck::Denied(format!("policy {} names no provider", policy.key())),
    }
}
