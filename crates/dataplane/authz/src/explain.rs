//! Explains an authorization decision to operators: evaluates every policy that applies to the connection.

use ambit_model::{Action, ArcStr, Authorization, PolicyKey, Scope, Workload};

use crate::{
    Connection, Decision, PolicySet, evaluate::is_peer_authentication, matching::matching_rule,
};

/// Authorization decision with the evaluation of each policy that applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Decision about the connection.
    pub decision: Decision,
    /// Evaluations of every policy that applies to the destination: DENY policies first, then by name.
    pub policies: Vec<PolicyEvaluation>,
    /// Names of policies in the destination's WDS record that were not received.
    pub missing_policies: Vec<ArcStr>,
}

/// Evaluation of one policy for a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyEvaluation {
    /// Key of the policy.
    pub policy: PolicyKey,
    /// Scope by which the policy applies to the workload.
    pub scope: Scope,
    /// Action of the policy if it matches.
    pub action: Action,
    /// Whether the policy is a dry run.
    pub dry_run: bool,
    /// Outcome of the policy's evaluation.
    pub outcome: PolicyOutcome,
}

/// Whether a rule of a policy matches the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyOutcome {
    /// A rule of the policy matches.
    Matches {
        /// Index of the first rule that matches, counted from 0.
        rule: usize,
    },
    /// No rule of the policy matches.
    NoMatch,
}

impl PolicySet {
    /// Decides a connection and returns the evaluation of every policy that applies. Slower than [`Self::evaluate`],
    /// which stops at the first policy that decides.
    pub fn explain(&self, destination: &Workload, connection: &Connection) -> Explanation {
        let decision = self.evaluate(destination, connection);
        self.explain_policies(destination, connection, decision, |_| true)
    }

    /// Decides like [`Self::evaluate_peer_authentication`], and returns the evaluation of each policy.
    pub fn explain_peer_authentication(
        &self,
        destination: &Workload,
        connection: &Connection,
    ) -> Explanation {
        let decision = self.evaluate_peer_authentication(destination, connection);
        self.explain_policies(destination, connection, decision, is_peer_authentication)
    }

    /// Returns the dry-run policies that would deny a connection if they were enforced. Returns immediately if the set
    /// has no dry-run policy.
    pub fn dry_run_denials(
        &self,
        destination: &Workload,
        connection: &Connection,
    ) -> Vec<PolicyKey> {
        if !self.has_dry_runs() {
            return Vec::new();
        }
        let applicable = self.applicable_policies(destination);
        let matches = |policy: &Authorization| matching_rule(policy, connection).is_some();
        let of = |action: Action| {
            let all = applicable.iter().map(|policy| &**policy);
            all.filter(move |policy| policy.action == action)
        };
        let denies = of(Action::Deny).filter(|policy| policy.dry_run && matches(policy));
        let mut refusing: Vec<_> = denies.map(|policy| policy.key()).collect();
        if !of(Action::Allow).any(|policy| matches(policy)) {
            let allows = of(Action::Allow).filter(|policy| policy.dry_run);
            refusing.extend(allows.map(|policy| policy.key()));
        }
        refusing
    }

    fn explain_policies(
        &self,
        destination: &Workload,
        connection: &Connection,
        decision: Decision,
        counts: impl Fn(&str) -> bool,
    ) -> Explanation {
        let mut policies: Vec<_> = self
            .applicable_policies(destination)
            .into_iter()
            .filter(|policy| counts(&policy.name))
            .map(|policy| PolicyEvaluation {
                policy: policy.key(),
                scope: policy.scope,
                action: policy.action,
                dry_run: policy.dry_run,
                outcome: matching_rule(policy, connection).map_or(PolicyOutcome::NoMatch, |rule| {
                    PolicyOutcome::Matches { rule }
                }),
            })
            .collect();
        policies.sort_by_key(|evaluation| evaluation.action != Action::Deny);
        let missing = destination
            .authorization_policies
            .iter()
            .filter(|name| counts(name) && self.by_name(name).is_none())
            .cloned()
            .collect();
        Explanation {
            decision,
            policies,
            missing_policies: missing,
        }
    }
}
