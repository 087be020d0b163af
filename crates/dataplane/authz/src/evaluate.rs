//! Decides whether a connection is allowed.
//!
//! Deny first, then allow; without any enforced ALLOW policy everything not denied is allowed. Dry-run policies
//! decide nothing; their effect is only reported.

use std::fmt;

use ambit_model::{Action, ArcStr, Authorization, PolicyKey, Workload};

use crate::{
    connection::{Connection, Peer},
    set::{MissingPolicies, PolicySet, ScopePolicies},
};

/// Name of the policy into which istiod converts a PeerAuthentication in STRICT mode: it denies all plaintext.
const STATIC_STRICT_POLICY: &str = "istio_converted_static_strict";
/// Name prefix of the policies into which istiod converts a PeerAuthentication.
const CONVERTED_PEER_AUTHENTICATION_PREFIX: &str = "converted_peer_authentication_";

/// Authorization decision for a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the connection is allowed.
    pub allowed: bool,
    /// Policy that decided; `None` if no policy applies, or no ALLOW policy matches.
    pub decided_by: Option<PolicyKey>,
    /// Reason for the decision, for logs.
    pub reason: DecisionReason,
    /// Dry-run policies that matched the connection.
    pub dry_run_matches: Vec<DryRunMatch>,
}

/// Reason of an authorization decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecisionReason {
    /// No policy applies to the destination.
    NoPolicies,
    /// Policies apply, but none is an enforced ALLOW policy and none denies the connection.
    NoAllowPolicies,
    /// An ALLOW policy matches.
    Allowed,
    /// A DENY policy matches.
    Denied,
    /// No ALLOW policy matches, although some apply.
    NoAllowPolicyMatched,
    /// The fail-closed substitute of a policy denies; the text says why the original could not be decoded in full.
    InvalidPolicy(ArcStr),
    /// The destination's WDS record names a policy that was not received, and no known policy denies.
    MissingPolicy(ArcStr),
}

/// A dry-run policy that matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DryRunMatch {
    /// Key of the policy.
    pub policy: PolicyKey,
    /// Action that the policy would have if enforced.
    pub action: Action,
}

impl Decision {
    fn new(allowed: bool, decided_by: Option<PolicyKey>, why: DecisionReason) -> Self {
        Self {
            allowed,
            decided_by,
            reason: why,
            dry_run_matches: Vec::new(),
        }
    }
}

/// Formats the decision for logs, with the wording of Istio's ztunnel.
impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.reason, &self.decided_by) {
            (DecisionReason::Denied, Some(policy)) => write!(f, "explicitly denied by: {policy}"),
            (DecisionReason::Denied, None) => f.write_str("explicitly denied"),
            (DecisionReason::NoAllowPolicyMatched, _) => {
                f.write_str("allow policies exist, but none allowed")
            }
            (DecisionReason::Allowed, Some(policy)) => write!(f, "allowed by: {policy}"),
            (DecisionReason::Allowed, None) => f.write_str("allowed"),
            (DecisionReason::NoPolicies, _) => f.write_str("allowed: no policy applies"),
            (DecisionReason::NoAllowPolicies, _) => f.write_str("allowed: no allow policies apply"),
            (DecisionReason::InvalidPolicy(why), policy) => {
                f.write_str("denied: policy ")?;
                if let Some(policy) = policy {
                    write!(f, "{policy} ")?;
                }
                write!(
                    f,
                    "is not understood ({why}), so it denies everything it covers"
                )
            }
            (DecisionReason::MissingPolicy(name), _) => {
                write!(
                    f,
                    "denied: policy {name} applies to the destination but is not known yet"
                )
            }
        }
    }
}

impl PolicySet {
    /// Decides whether a connection to `destination` is allowed.
    pub fn evaluate(&self, destination: &Workload, connection: &Connection) -> Decision {
        let buckets = self.scopes_for_namespace(&destination.namespace);
        let names = destination.authorization_policies.as_slice();
        if names.is_empty()
            && buckets
                .iter()
                .all(|bucket| bucket.is_none_or(ScopePolicies::is_empty))
        {
            return Decision::new(true, None, DecisionReason::NoPolicies);
        }
        let (selected, missing) = self.policies_by_name(names);
        let peer = Peer::new(connection);
        let matching = |action, dry_run| {
            let in_buckets = buckets
                .iter()
                .flatten()
                .filter_map(|bucket| bucket.first_match(action, dry_run, &peer));
            let named = selected
                .iter()
                .filter(|policy| policy.action == action && policy.dry_run == dry_run)
                .filter(|policy| any_rule_matches(policy, &peer))
                .map(|policy| policy.key());
            in_buckets.chain(named).min()
        };
        let denied = self.denial_by_policy(matching(Action::Deny, false));
        let mut decision = match (denied, missing) {
            (Some(denied), _) => denied,
            (None, Some(name)) => {
                Decision::new(false, None, DecisionReason::MissingPolicy(name.clone()))
            }
            (None, None) => decide_by_allow_policies(&matching, || {
                buckets
                    .iter()
                    .flatten()
                    .any(|bucket| bucket.has_enforced_allow())
                    || selected
                        .iter()
                        .any(|p| p.action == Action::Allow && !p.dry_run)
            }),
        };
        if decision.reason == DecisionReason::NoAllowPolicies
            && self.has_no_policies(&buckets, &selected)
        {
            decision.reason = DecisionReason::NoPolicies;
        }
        for action in [Action::Deny, Action::Allow] {
            if let Some(policy) = matching(action, true) {
                decision
                    .dry_run_matches
                    .push(DryRunMatch { policy, action });
            }
        }
        decision
    }

    /// Decides by PeerAuthentication alone: evaluates only the DENY policies that istiod converts it to and that the
    /// destination names.
    pub fn evaluate_peer_authentication(
        &self,
        destination: &Workload,
        connection: &Connection,
    ) -> Decision {
        let names = destination.authorization_policies.iter();
        let (selected, missing) =
            self.policies_by_name(names.filter(|name| is_peer_authentication(name)));
        let peer = Peer::new(connection);
        let denying = selected
            .iter()
            .filter(|policy| policy.action == Action::Deny && !policy.dry_run)
            .filter(|policy| any_rule_matches(policy, &peer))
            .map(|policy| policy.key())
            .min();
        match (self.denial_by_policy(denying), missing) {
            (Some(denied), _) => denied,
            (None, Some(name)) => {
                Decision::new(false, None, DecisionReason::MissingPolicy(name.clone()))
            }
            (None, None) if selected.is_empty() => {
                Decision::new(true, None, DecisionReason::NoPolicies)
            }
            (None, None) => Decision::new(true, None, DecisionReason::NoAllowPolicies),
        }
    }

    /// Returns the policies with these names. Also returns the first name without a policy, if missing policies deny.
    fn policies_by_name<'a>(
        &self,
        names: impl IntoIterator<Item = &'a ArcStr>,
    ) -> (Vec<&Authorization>, Option<&'a ArcStr>) {
        let mut selected: Vec<&Authorization> = Vec::new();
        let mut missing = None;
        for name in names {
            match self.by_name(name) {
                Some(policy) => selected.push(policy),
                None if self.missing_policies() == MissingPolicies::Ignore => {}
                None => missing = missing.or(Some(name)),
            }
        }
        (selected, missing)
    }

    fn denial_by_policy(&self, policy: Option<PolicyKey>) -> Option<Decision> {
        let policy = policy?;
        let known = self.by_key(&policy);
        let why = known
            .and_then(|known| known.not_understood.clone())
            .map_or(DecisionReason::Denied, DecisionReason::InvalidPolicy);
        Some(Decision::new(false, Some(policy), why))
    }

    fn has_no_policies(
        &self,
        buckets: &[Option<&ScopePolicies>; 2],
        selected: &[&Authorization],
    ) -> bool {
        selected.is_empty() && buckets.iter().flatten().all(|bucket| bucket.is_empty())
    }
}

fn any_rule_matches(policy: &Authorization, peer: &Peer<'_>) -> bool {
    let mut rules = policy.rules.iter();
    rules.any(|rule| crate::matching::rule_matches(rule, peer))
}

/// Whether a policy of this name (`namespace/name`) is converted from a PeerAuthentication: no Kubernetes object can
/// have such a name.
pub(crate) fn is_peer_authentication(record: &str) -> bool {
    let name = record.split_once('/').map_or(record, |(_, name)| name);
    name == STATIC_STRICT_POLICY || name.starts_with(CONVERTED_PEER_AUTHENTICATION_PREFIX)
}

/// Decides whether a connection that no DENY policy matches is allowed by the ALLOW policies.
fn decide_by_allow_policies(
    find_match: &dyn Fn(Action, bool) -> Option<PolicyKey>,
    has_allow_policies: impl FnOnce() -> bool,
) -> Decision {
    if !has_allow_policies() {
        return Decision::new(true, None, DecisionReason::NoAllowPolicies);
    }
    match find_match(Action::Allow, false) {
        Some(policy) => Decision::new(true, Some(policy), DecisionReason::Allowed),
        None => Decision::new(false, None, DecisionReason::NoAllowPolicyMatched),
    }
}
