//! Decisions of policies, and their text.

use std::fmt;

use ambit_model::{ArcStr, PolicyKey};

/// The outcome for a request or a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpDecision {
    /// Reason for the decision.
    pub why: Why,
    /// The dry-run policies that would have denied.
    pub dry_run: Vec<DryRun>,
    /// Rules of AUDIT policies that matched.
    pub audits: Vec<RuleId>,
}

/// Reason for an authorization decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// Allowed: no ALLOW policy applies, and none denies.
    NoAllowPolicies,
    /// An ALLOW policy matches.
    Allowed(RuleId),
    /// A DENY policy matches.
    Denied(RuleId),
    /// ALLOW policies apply, and none of them matches.
    NoneAllows,
    /// A policy that could not be decoded in full applies.
    NotUnderstood {
        /// Key of the policy.
        policy: PolicyKey,
        /// Reason why the policy could not be decoded.
        why: ArcStr,
    },
}

/// A rule of a policy, counted from zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleId {
    /// Key of the policy.
    pub policy: PolicyKey,
    /// Index of the rule in its policy.
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

/// A dry-run policy that would have denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DryRun {
    /// Key of the policy.
    pub policy: PolicyKey,
    /// Rule that denies; `None` for an ALLOW policy without a matching rule, when no other ALLOW
    /// policy matches.
    pub rule: Option<usize>,
}

impl DryRun {
    pub(super) fn new(policy: &PolicyKey, rule: Option<usize>) -> Self {
        Self {
            policy: policy.clone(),
            rule,
        }
    }
}

impl HttpDecision {
    /// Whether the request is allowed.
    pub fn is_allowed(&self) -> bool {
        matches!(self.why, Why::NoAllowPolicies | Why::Allowed(_))
    }

    /// Merges the decision for another service about the same request: the first denial counts.
    pub(super) fn join(&mut self, other: Self) {
        let is_more = !other.is_allowed() || self.why == Why::NoAllowPolicies;
        if self.is_allowed() && is_more {
            self.why = other.why;
        }
        for one in other.dry_run {
            if !self.dry_run.contains(&one) {
                self.dry_run.push(one);
            }
        }
        for one in other.audits {
            if !self.audits.contains(&one) {
                self.audits.push(one);
            }
        }
    }

    /// Returns the policy that denies, if there is one.
    pub fn denied_by(&self) -> Option<&PolicyKey> {
        match &self.why {
            Why::Denied(RuleId { policy, .. }) | Why::NotUnderstood { policy, .. } => Some(policy),
            Why::NoAllowPolicies | Why::Allowed(_) | Why::NoneAllows => None,
        }
    }

    /// Returns a denial as Envoy writes it in `%RESPONSE_CODE_DETAILS%`; `None` if the request is
    /// allowed.
    pub fn details(&self) -> Option<String> {
        let of_rule = |PolicyKey { namespace, name }: &PolicyKey, rule| {
            format!(
                "rbac_access_denied_matched_policy[ns[{namespace}]-policy[{name}]-rule[{rule}]]"
            )
        };
        match &self.why {
            Why::NoAllowPolicies | Why::Allowed(_) => None,
            Why::Denied(RuleId { policy, rule }) => Some(of_rule(policy, *rule)),
            Why::NotUnderstood { policy, .. } => Some(of_rule(policy, 0)),
            Why::NoneAllows => Some("rbac_access_denied_matched_policy[none]".to_owned()),
        }
    }
}

/// The text in logs.
impl fmt::Display for HttpDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            Why::NoAllowPolicies => f.write_str("allowed: no ALLOW policy applies"),
            Why::Allowed(rule) => write!(f, "allowed by {rule}"),
            Why::Denied(rule) => write!(f, "denied by {rule}"),
            Why::NoneAllows => {
                f.write_str("denied: ALLOW policies apply, and none of them matches")
            }
            Why::NotUnderstood { policy, why } => write!(
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
