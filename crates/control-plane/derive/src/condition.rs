//! Which conditions should stand on an object. What stands there is never read here: who writes compares.

use std::collections::BTreeMap;

use ambit_k8s_api::labels;

use crate::problem::{Problem, Severity};

/// Longest message, in characters: a status is no log.
const LONGEST: usize = 1000;

/// A type of condition, as objects of some kind have it.
#[derive(Clone, Copy, Debug)]
pub struct ConditionType {
    /// Its `type`.
    pub name: &'static str,
    /// The field manager that it is written under.
    pub manager: &'static str,
    /// What should stand there; nothing if `None`.
    pub verdict: fn(&Subject<'_>) -> Option<Verdict>,
    /// Whether it reports problems, so that they need no event of their own.
    pub reports_problems: bool,
    /// Whether it depends on the waypoint that the namespace names.
    pub inherits_waypoint: bool,
}

/// An object that is judged.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// What is wrong with it.
    pub problems: &'a [Problem],
    /// Of a policy: whether any of it is in force.
    pub in_force: bool,
    /// Whether it is attached to other objects, of which waypoints take care.
    pub is_attached: bool,
    /// The waypoint that it names.
    pub waypoint: Option<&'a str>,
    /// The waypoint that its namespace names.
    pub inherited_waypoint: Option<&'a str>,
}

/// Whether node proxies enforce a policy.
pub(crate) const ACCEPTED: ConditionType = ConditionType {
    name: "ZtunnelAccepted",
    manager: "istio-ambient-ztunnel-policy",
    verdict: |subject| (!subject.is_attached).then(|| policy(subject)),
    reports_problems: true,
    inherits_waypoint: false,
};

/// Whether a waypoint enforces a policy.
pub(crate) const WAYPOINT_ACCEPTED: ConditionType = ConditionType {
    name: "WaypointAccepted",
    manager: "istio-ambient-waypoint-policy",
    verdict: not_bound,
    reports_problems: false,
    inherits_waypoint: false,
};

/// Whether the waypoint of a service is there.
pub(crate) const BOUND: ConditionType = ConditionType {
    name: "istio.io/WaypointBound",
    manager: "istio-ambient-service",
    verdict: bound,
    reports_problems: false,
    inherits_waypoint: true,
};

/// The same of a workload entry.
pub(crate) const BOUND_ENTRY: ConditionType = ConditionType {
    manager: "istio-ambient-workloadentry",
    ..BOUND
};

/// Whether an entry is used as it is written.
pub(crate) const USED: ConditionType = ConditionType {
    name: "ambit.io/Used",
    manager: "ambit-entry",
    verdict: used,
    reports_problems: true,
    inherits_waypoint: false,
};

/// What a condition says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Its `status`.
    pub is_true: bool,
    /// Its `reason`.
    pub reason: &'static str,
    /// Its `message`.
    pub message: String,
    /// Whether somebody should look at it.
    pub is_trouble: bool,
}

fn not_bound(subject: &Subject<'_>) -> Option<Verdict> {
    subject.is_attached.then(|| Verdict {
        is_true: false,
        reason: "AncestorNotBound",
        message: "no target of this policy is bound to a waypoint: the policy has no effect"
            .to_owned(),
        is_trouble: true,
    })
}

/// Of an entry that is used as it is, nothing is said.
fn used(subject: &Subject<'_>) -> Option<Verdict> {
    let is_broken = subject
        .problems
        .iter()
        .any(|problem| problem.severity == Severity::Error);
    (!subject.problems.is_empty()).then(|| Verdict {
        is_true: false,
        reason: if is_broken { "NotUsed" } else { "PartlyUsed" },
        message: text(subject.problems),
        is_trouble: true,
    })
}

fn policy(subject: &Subject<'_>) -> Verdict {
    let is_broken = |problem: &Problem| problem.severity == Severity::Error;
    let (is_true, reason) = match subject.problems {
        [] => (true, "Accepted"),
        problems if problems.iter().any(is_broken) => (
            false,
            if subject.in_force {
                "Outdated"
            } else {
                "Invalid"
            },
        ),
        _ => (subject.in_force, "UnsupportedValue"),
    };
    let message = if subject.problems.is_empty() {
        "attached to ztunnel".to_owned()
    } else {
        text(subject.problems)
    };
    Verdict {
        is_true,
        reason,
        message,
        is_trouble: !subject.problems.is_empty(),
    }
}

fn bound(subject: &Subject<'_>) -> Option<Verdict> {
    let own = subject.waypoint;
    let name = own
        .or(subject.inherited_waypoint)
        .filter(|name| *name != "none")?;
    let whose = if own.is_some() {
        ""
    } else {
        "its namespace's "
    };
    Some(Verdict {
        is_true: false,
        reason: "WaypointIsNotReady",
        message: format!(
            "{whose}label {}={name}: there is no such waypoint that is ready; traffic goes without one",
            labels::USE_WAYPOINT
        ),
        is_trouble: true,
    })
}

/// Problems as one text.
pub fn text(problems: &[Problem]) -> String {
    let one = |problem: &Problem| match problem.field.as_str() {
        "" | "." => problem.message.clone(),
        // Some messages name a field themselves, deeper than this.
        field if problem.message.starts_with(field) => problem.message.clone(),
        field => format!("{field}: {}", problem.message),
    };
    let all: Vec<_> = problems.iter().map(one).collect();
    all.join("; ").chars().take(LONGEST).collect()
}

/// The waypoint that labels name, as `name` or `namespace/name`.
pub fn waypoint(labels: Option<&BTreeMap<String, String>>) -> Option<String> {
    let labels = labels?;
    let name = labels
        .get(labels::USE_WAYPOINT)
        .filter(|name| !name.is_empty())?;
    Some(match labels.get(labels::USE_WAYPOINT_NAMESPACE) {
        Some(namespace) if name != "none" => format!("{namespace}/{name}"),
        _ => name.clone(),
    })
}
