//! Explains a decision to operators: the outcome of every policy that applies to a request.

use ambit_model::{HttpAction, PolicyKey};

use super::{Bucket, HttpDecision, Policies, Request, Scope, ServicePort, facts::Facts};

/// A decision with the outcome of every policy that applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpExplanation {
    /// The decision itself.
    pub decision: HttpDecision,
    /// Every policy of the scope, once for each service port to which it applies.
    pub policies: Vec<PolicyOutcome>,
}

/// The outcome of one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyOutcome {
    /// Key of the policy.
    pub policy: PolicyKey,
    /// The effect of a match; DENY for a policy that is not understood.
    pub action: HttpAction,
    /// Whether the policy is a dry run.
    pub dry_run: bool,
    /// The first rule that matches, counted from 0.
    pub matching_rule: Option<usize>,
}

impl Policies {
    /// Decides a request and reports the outcome of every policy that applies. Slower than [`Self::evaluate`]: it
    /// evaluates all policies.
    pub fn explain(&self, scope: Scope<'_>, request: &Request<'_>) -> HttpExplanation {
        let decision = self.evaluate(scope, request);
        let mut facts = Facts::of_request(request);
        let (of, ports): (_, &[ServicePort]) = match scope {
            Scope::Pod(ports) => (Scope::Pod(&[]), ports),
            other => (other, &[]),
        };
        let mut policies = self.outcomes(of, &facts);
        for port in ports {
            facts.call_at(port.address);
            for outcome in self.outcomes(Scope::Service(&port.service), &facts) {
                if !policies.contains(&outcome) {
                    policies.push(outcome);
                }
            }
        }
        policies.sort_by_key(|one| rank(one.action));
        HttpExplanation { decision, policies }
    }

    fn outcomes(&self, scope: Scope<'_>, facts: &Facts<'_>) -> Vec<PolicyOutcome> {
        let mut policies: Vec<_> = self.buckets(scope).flat_map(Bucket::all).collect();
        if matches!(scope, Scope::Backend(_)) {
            // A policy of the whole waypoint may allow requests that the backend's own policies do
            // not.
            policies.extend(&self.gateway.allow);
        }
        let outcomes = policies.into_iter().map(|policy| PolicyOutcome {
            policy: policy.key().clone(),
            action: policy.action(),
            dry_run: policy.dry_run(),
            matching_rule: policy.matching_rule(facts),
        });
        outcomes.collect()
    }
}

/// Order in which actions are evaluated.
fn rank(action: HttpAction) -> u8 {
    match action {
        HttpAction::Custom => 0,
        HttpAction::Deny => 1,
        HttpAction::Allow => 2,
        HttpAction::Audit => 3,
    }
}
