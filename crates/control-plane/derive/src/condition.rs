//! Desired conditions of an object. Published conditions are never read here: the writer compares.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::problem::{Problem, Severity};

/// Longest message, in characters: a status is no log.
pub(crate) const MAX_MESSAGE_CHARS: usize = 1000;

/// A type of condition, as objects of some kind have it.
#[derive(Clone, Copy, Debug)]
pub struct ConditionType {
    /// `type` of the condition.
    pub name: &'static str,
    /// The field manager that it is written under.
    pub manager: &'static str,
    /// Verdict on an object; the condition is removed if `None`.
    pub verdict: fn(&Subject<'_>) -> Option<Verdict>,
    /// Whether it reports problems, so that they need no event of their own.
    pub reports_problems: bool,
    /// Whether it depends on [`Subject::standing`].
    pub needs_standing: bool,
}

/// Parts of objects that have conditions of their own: a list in the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartsType {
    /// Field of the status.
    pub list: &'static str,
    /// The field manager that it is written under.
    pub manager: &'static str,
    /// Whether parts of other controllers stand in it, too.
    pub is_shared: bool,
}

/// State of an object that depends on other objects.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Standing {
    /// Of its waypoint.
    pub verdict: Option<Verdict>,
    /// Of its parts.
    pub parts: Vec<Part>,
    /// Of a Gateway: whether its waypoint has been ready.
    pub introduction: Option<Verdict>,
    /// Of a Gateway: which objects keep another waypoint until its own has been ready.
    pub replaces: Option<Verdict>,
}

/// One part and its conditions.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// The fields that tell it from others.
    pub identity: BTreeMap<&'static str, Value>,
    /// Further fields of the entry.
    pub fields: BTreeMap<&'static str, Value>,
    /// Its conditions, by type.
    pub conditions: Vec<(&'static str, Verdict)>,
}

/// An object and its problems, for conditions.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Problems of the object.
    pub problems: &'a [Problem],
    /// Of a policy: whether any of it is in force.
    pub in_force: bool,
    /// Whether it is attached to other objects, of which waypoints take care.
    pub is_attached: bool,
    /// State of the object that depends on others.
    pub standing: Option<&'a Standing>,
}

/// Whether node proxies enforce a policy.
pub(crate) const ACCEPTED: ConditionType = ConditionType {
    name: "ZtunnelAccepted",
    manager: "istio-ambient-ztunnel-policy",
    verdict: |subject| (!subject.is_attached).then(|| policy(subject)),
    reports_problems: true,
    needs_standing: false,
};

/// Whether a waypoint enforces a policy.
pub(crate) const WAYPOINT_ACCEPTED: ConditionType = ConditionType {
    name: "WaypointAccepted",
    manager: "istio-ambient-waypoint-policy",
    verdict: at_waypoints,
    reports_problems: true,
    needs_standing: true,
};

/// Whether waypoints apply an object's authentication.
pub(crate) const AUTHENTICATION_ACCEPTED: ConditionType = ConditionType {
    verdict: with_problems,
    ..WAYPOINT_ACCEPTED
};
/// Whether waypoints run a plugin.
pub(crate) const PLUGIN_ACCEPTED: ConditionType = ConditionType {
    manager: "ambit-wasm-plugin",
    verdict: with_problems,
    ..WAYPOINT_ACCEPTED
};

/// Whether waypoints apply an object's rate limits.
pub(crate) const LIMIT_ACCEPTED: ConditionType = ConditionType {
    manager: "ambit-rate-limit",
    ..PLUGIN_ACCEPTED
};

/// Whether the waypoint of a service is there.
pub(crate) const BOUND: ConditionType = ConditionType {
    name: "istio.io/WaypointBound",
    manager: "istio-ambient-service",
    verdict: |subject| subject.standing?.verdict.clone(),
    reports_problems: false,
    needs_standing: true,
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
    needs_standing: false,
};

/// Which waypoints follow a destination rule.
pub(crate) const RULE_USED: ConditionType = ConditionType {
    manager: "ambit-destination-rule",
    verdict: with_problems,
    needs_standing: true,
    ..USED
};

/// Which waypoints follow a VirtualService.
pub(crate) const VIRTUAL_SERVICE_USED: ConditionType = ConditionType {
    manager: "ambit-virtual-service",
    ..RULE_USED
};

/// Which routes inject a fault.
pub(crate) const FAULT_USED: ConditionType = ConditionType {
    manager: "ambit-http-fault",
    ..RULE_USED
};
/// Waypoints that apply a Telemetry.
pub(crate) const TELEMETRY_USED: ConditionType = ConditionType {
    manager: "ambit-telemetry",
    ..RULE_USED
};

/// Whether all that concerns a waypoint has the effect that one might expect.
pub(crate) const EFFECTIVE: ConditionType = ConditionType {
    name: "ambit.io/Effective",
    manager: "ambit-gateway",
    verdict: |subject| {
        // Gateways that are not our waypoints have no condition.
        subject.standing?.verdict.as_ref()?;
        used(subject)
    },
    reports_problems: false,
    needs_standing: true,
};

/// Whether a waypoint has been ready since its Gateway exists.
pub(crate) const INTRODUCED: ConditionType = ConditionType {
    name: "ambit.io/Introduced",
    manager: "ambit-introduction",
    verdict: |subject| subject.standing?.introduction.clone(),
    reports_problems: false,
    needs_standing: true,
};

/// Which objects keep another waypoint until the Gateway's has been ready. Later processes read it.
pub(crate) const REPLACES: ConditionType = ConditionType {
    name: "ambit.io/Replaces",
    manager: "ambit-replaces",
    verdict: |subject| subject.standing?.replaces.clone(),
    reports_problems: false,
    needs_standing: true,
};

/// Contents of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether its `status` is `True`.
    pub is_true: bool,
    /// `reason` of the condition.
    pub reason: &'static str,
    /// `message` of the condition.
    pub message: String,
    /// Whether it needs attention.
    pub is_trouble: bool,
}

/// Whether, and where, an attached policy is in force.
fn at_waypoints(subject: &Subject<'_>) -> Option<Verdict> {
    subject.is_attached.then(|| with_problems(subject))?
}

/// State of an object with its problems.
fn with_problems(subject: &Subject<'_>) -> Option<Verdict> {
    let mut problems = subject.problems.iter();
    if problems.any(|problem| problem.severity == Severity::Error) {
        return Some(Verdict {
            is_true: false,
            reason: "Invalid",
            message: text(subject.problems),
            is_trouble: true,
        });
    }
    let mut verdict = subject.standing?.verdict.clone()?;
    if !subject.problems.is_empty() {
        if verdict.is_true {
            verdict.reason = "PartiallyInvalid";
        }
        verdict.message = format!("{}; {}", verdict.message, text(subject.problems));
        verdict.is_trouble = true;
    }
    Some(verdict)
}

/// An entry that is used as written has no condition.
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

/// Problems as one text.
pub fn text(problems: &[Problem]) -> String {
    let one = |problem: &Problem| match problem.field.as_str() {
        "" | "." => problem.message.clone(),
        // Some messages name a field themselves, deeper than this.
        field if problem.message.starts_with(field) => problem.message.clone(),
        field => format!("{field}: {}", problem.message),
    };
    let all: Vec<_> = problems.iter().map(one).collect();
    all.join("; ").chars().take(MAX_MESSAGE_CHARS).collect()
}
