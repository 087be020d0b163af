//! Explains a decision to operators: the outcome of every policy that applies to a request.

use ambit_model::{HttpAction, PolicyKey};

use super::{
    HttpDecision, Policies, Request, Scope, ScopePolicies, ServicePort,
    attributes::PolicyAttributes,
};

/// Decision with the result of every policy that applies to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpExplanation {
    /// Decision that [`Policies::evaluate`] returns for the request.
    pub decision: HttpDecision,
    /// Results of all policies in the scope, once for each service port to which a policy applies.
    pub policies: Vec<PolicyOutcome>,
}

/// Result of evaluating one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyOutcome {
    /// Key of the evaluated policy.
    pub policy: PolicyKey,
    /// Action of the policy; DENY for a policy that could not be decoded.
    pub action: HttpAction,
    /// Whether the policy is a dry run.
    pub dry_run: bool,
    /// Index of the first rule that matches, counted from 0.
    pub matching_rule: Option<usize>,
}

impl Policies {
    /// Evaluates a request, and reports the result of every policy that applies. It is slower than [`Self::evaluate`],
    /// which does not evaluate all policies.
    pub fn explain(&self, scope: Scope<'_>, request: &Request<'_>) -> HttpExplanation {
        let decision = self.evaluate(scope, request);
        let mut facts = PolicyAttributes::from_request(request);
        let (of, ports): (_, &[ServicePort]) = match scope {
            Scope::Pod(ports) => (Scope::Pod(&[]), ports),
            other => (other, &[]),
        };
        let mut policies = self.policy_outcomes(of, &facts);
        for port in ports {
            facts.set_destination(port.address);
            for outcome in self.policy_outcomes(Scope::Service(&port.service), &facts) {
                if !policies.contains(&outcome) {
                    policies.push(outcome);
                }
            }
        }
        policies.sort_by_key(|one| evaluation_rank(one.action));
        HttpExplanation { decision, policies }
    }

    fn policy_outcomes(
        &self,
        scope: Scope<'_>,
        facts: &PolicyAttributes<'_>,
    ) -> Vec<PolicyOutcome> {
        let mut policies: Vec<_> = self
            .policies_in_scope(scope)
            .flat_map(ScopePolicies::all)
            .collect();
        if matches!(scope, Scope::Backend(_)) {
            // A policy of the whole waypoint may allow requests that the backend's own policies do
            // not.
            policies.extend(&self.waypoint_policies.allow);
        }
        let outcomes = policies.into_iter().map(|policy| PolicyOutcome {
            policy: policy.key().clone(),
            action: policy.action(),
            dry_run: policy.is_dry_run(),
            matching_rule: policy.matching_rule(facts),
        });
        outcomes.collect()
    }
}

/// Returns the position of an action in the order of evaluation.
fn evaluation_rank(action: HttpAction) -> u8 {
    match action {
        HttpAction::Custom => 0,
        HttpAction::Deny => 1,
        HttpAction::Allow => 2,
        HttpAction::Audit => 3,
    }
}
