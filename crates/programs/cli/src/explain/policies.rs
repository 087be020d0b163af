//! Evaluations of authorization policies, as reports show them.

use ambit_authz::{DecisionReason, Explanation, PolicyOutcome};
use ambit_mesh_json::Json;
use ambit_model::{Action, Scope};
use serde::Serialize;

/// Evaluation of one authorization policy for a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PolicyReport {
    pub(crate) policy: String,
    pub(crate) action: Json<Action>,
    pub(crate) scope: Json<Scope>,
    pub(crate) dry_run: bool,
    /// First rule that matches, counted from 1; `None` if none does.
    pub(crate) matching_rule: Option<usize>,
}

pub(super) fn policy_reports(explanation: &Explanation) -> Vec<PolicyReport> {
    let all = explanation.policies.iter();
    all.map(|evaluation| PolicyReport {
        policy: evaluation.policy.to_string(),
        action: Json(evaluation.action),
        scope: Json(evaluation.scope),
        dry_run: evaluation.dry_run,
        matching_rule: match evaluation.outcome {
            PolicyOutcome::Matches { rule } => Some(rule + 1),
            PolicyOutcome::NoMatch => None,
        },
    })
    .collect()
}

/// Describes the reason of a decision in words.
pub(super) fn reason_text(why: &DecisionReason) -> &'static str {
    match why {
        DecisionReason::NoPolicies => "no policy applies",
        DecisionReason::NoAllowPolicies => "no DENY policy matches, no ALLOW policy applies",
        DecisionReason::Allowed => "an ALLOW policy matches",
        DecisionReason::Denied => "a DENY policy matches",
        DecisionReason::NoAllowPolicyMatched => "ALLOW policies apply, none of them matches",
        DecisionReason::InvalidPolicy(_) => {
            "a policy that is not understood denies all that it covers"
        }
        DecisionReason::MissingPolicy(_) => "the server names a policy that is not known (yet)",
    }
}
