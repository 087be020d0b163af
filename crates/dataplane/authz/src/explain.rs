//! What every policy that applies made of a connection, for people.

use ambit_model::{Action, ArcStr, PolicyKey, Scope, Workload};

use crate::{Connection, Decision, PolicySet, matching::matching_rule};

/// A decision with everything that led to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The decision itself.
    pub decision: Decision,
    /// Every policy that applies to the destination, denying ones first, then by name.
    pub policies: Vec<PolicyVerdict>,
    /// Policies that the destination names and nobody knows.
    pub missing: Vec<ArcStr>,
}

/// What one policy made of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyVerdict {
    /// The policy.
    pub policy: PolicyKey,
    /// Why it applies.
    pub scope: Scope,
    /// What a match would mean.
    pub action: Action,
    /// It only reports.
    pub dry_run: bool,
    /// What came out.
    pub outcome: Outcome,
}

/// See [`PolicyVerdict`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The rule with this index, counted from 0, matches.
    Matches {
        /// Which rule.
        rule: usize,
    },
    /// No rule matches.
    NoMatch,
}

impl PolicySet {
    /// Decides a connection and says what every policy that applies made of it. Slower than
    /// [`Self::evaluate`]: it looks at all policies.
    pub fn explain(&self, destination: &Workload, connection: &Connection) -> Explanation {
        let mut policies: Vec<_> = self
            .applicable(destination)
            .into_iter()
            .map(|policy| PolicyVerdict {
                policy: policy.key(),
                scope: policy.scope,
                action: policy.action,
                dry_run: policy.dry_run,
                outcome: matching_rule(policy, connection)
                    .map_or(Outcome::NoMatch, |rule| Outcome::Matches { rule }),
            })
            .collect();
        policies.sort_by_key(|verdict| verdict.action != Action::Deny);
        let missing = destination
            .authorization_policies
            .iter()
            .filter(|name| self.by_name(name).is_none())
            .cloned()
            .collect();
        Explanation {
            decision: self.evaluate(destination, connection),
            policies,
            missing,
        }
    }
}
