//! Decisions of authorization policies, with their text in logs.

use std::fmt;

use ambit_model::{ArcStr, PolicyKey};

/// Decision of the policies about a request or a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpDecision {
    /// Reason for the decision, which implies whether it allows.
    pub reason: DecisionReason,
    /// Dry-run policies that would have denied the request or connection.
    pub dry_run_denials: Vec<DryRunDenial>,
    /// Rules of AUDIT policies that matched the request or connection.
    pub matched_audit_rules: Vec<RuleId>,
}

/// Reason for an authorization decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecisionReason {
    /// No ALLOW policy applies, and no DENY policy matches: allowed.
    NoAllowPolicies,
    /// Rule of an ALLOW policy that matches: allowed.
    AllowedByRule(RuleId),
    /// Rule of a DENY policy that matches: denied.
    DeniedByRule(RuleId),
    /// ALLOW policies apply, but none of them matches: denied.
    NoAllowPolicyMatched,
    /// Policy that could not be decoded in full, so that it denies everything.
    InvalidPolicy {
        /// Key of the policy that could not be decoded.
        policy: PolicyKey,
        /// Reason why the policy could not be decoded.
        why: ArcStr,
    },
}

/// Rule of a policy, by its index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleId {
    /// Key of the rule's policy.
    pub policy: PolicyKey,
    /// Index of the rule in its policy, counted from 0.
    pub rule: usize,
}

impl RuleId {
    pub(super) fn new(policy: &PolicyKey, rule: usize) -> Self {
        Self {
            policy: policy.clone(),
            rule,
        }
    }
}

/// Dry-run policy that would have denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DryRunDenial {
    /// Key of the dry-run policy.
    pub policy: PolicyKey,
    /// Index of the DENY rule that matches; `None` for an ALLOW policy that does not match, when no other ALLOW policy
    /// does.
    pub rule: Option<usize>,
}

impl DryRunDenial {
    pub(super) fn new(policy: &PolicyKey, rule: Option<usize>) -> Self {
        Self {
            policy: policy.clone(),
            rule,
        }
    }
}

impl HttpDecision {
    /// Whether the decision allows the request or connection.
    pub fn is_allowed(&self) -> bool {
        matches!(
            self.reason,
            DecisionReason::NoAllowPolicies | DecisionReason::AllowedByRule(_)
        )
    }

    /// Merges the decision that the policies of another service made about the same request. The first denial wins.
    pub(super) fn merge(&mut self, other: Self) {
        let is_more = !other.is_allowed() || self.reason == DecisionReason::NoAllowPolicies;
        if self.is_allowed() && is_more {
            self.reason = other.reason;
        }
        for one in other.dry_run_denials {
            if !self.dry_run_denials.contains(&one) {
                self.dry_run_denials.push(one);
            }
        }
        for one in other.matched_audit_rules {
            if !self.matched_audit_rules.contains(&one) {
                self.matched_audit_rules.push(one);
            }
        }
    }

    /// Returns the policy that denies, if the decision is due to one policy.
    pub fn denying_policy(&self) -> Option<&PolicyKey> {
        match &self.reason {
            DecisionReason::DeniedByRule(RuleId { policy, .. })
            | DecisionReason::InvalidPolicy { policy, .. } => Some(policy),
            DecisionReason::NoAllowPolicies
            | DecisionReason::AllowedByRule(_)
            | DecisionReason::NoAllowPolicyMatched => None,
        }
    }

    /// Formats a denial as in Envoy's `%RESPONSE_CODE_DETAILS%`; `None` if the request is allowed.
    pub fn response_code_details(&self) -> Option<String> {
        let of_rule = |PolicyKey { namespace, name }: &PolicyKey, rule| {
            format!(
                "rbac_access_denied_matched_policy[ns[{namespace}]-policy[{name}]-rule[{rule}]]"
            )
        };
        match &self.reason {
            DecisionReason::NoAllowPolicies | DecisionReason::AllowedByRule(_) => None,
            DecisionReason::DeniedByRule(RuleId { policy, rule }) => Some(of_rule(policy, *rule)),
            DecisionReason::InvalidPolicy { policy, .. } => Some(of_rule(policy, 0)),
            DecisionReason::NoAllowPolicyMatched => {
                Some("rbac_access_denied_matched_policy[none]".to_owned())
            }
        }
    }
}

/// Formats the decision for logs.
impl fmt::Display for HttpDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            DecisionReason::NoAllowPolicies => f.write_str("allowed: no ALLOW policy applies"),
            DecisionReason::AllowedByRule(rule) => write!(f, "allowed by {rule}"),
            DecisionReason::DeniedByRule(rule) => write!(f, "denied by {rule}"),
            DecisionReason::NoAllowPolicyMatched => {
                f.write_str("denied: ALLOW policies apply, and none of them matches")
            }
            DecisionReason::InvalidPolicy { policy, why } => write!(
                f,
                "denied: policy {policy} is not understood ({why}), so it denies everything it covers"
            ),
        }
    }
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {} of policy {}", self.rule, self.policy)
    }
}
