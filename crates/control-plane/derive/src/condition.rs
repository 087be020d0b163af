//! Desired status conditions of objects. Published conditions are not read here: the status writer compares.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::problem::{Problem, Severity};

/// Maximum length of a condition's message, in characters.
pub(crate) const MAX_MESSAGE_CHARS: usize = 1000;

/// Type of status condition on objects of some kind.
#[derive(Clone, Copy, Debug)]
pub struct ConditionType {
    /// `type` of the condition.
    pub name: &'static str,
    /// Field manager of server-side apply that writes the condition.
    pub manager: &'static str,
    /// Builds the content of the condition for an object; `None` removes the condition.
    pub verdict: fn(&Subject<'_>) -> Option<Verdict>,
    /// Whether the condition reports the object's problems, so that they need no Kubernetes event.
    pub reports_problems: bool,
    /// Whether the condition depends on [`Subject::standing`].
    pub needs_standing: bool,
}

/// List in the status whose entries have their own conditions, such as `parents` of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartsType {
    /// Name of the list in the status.
    pub list: &'static str,
    /// Field manager of server-side apply that writes the list.
    pub manager: &'static str,
    /// Whether other controllers write entries to the same list.
    pub is_shared: bool,
}

/// State of an object as far as it depends on other objects, in the form of status conditions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Standing {
    /// Condition on the waypoints that an object has, or that apply it.
    pub verdict: Option<Verdict>,
    /// Entries of the list in the status, with their conditions.
    pub parts: Vec<Part>,
    /// Condition of a Gateway: whether its waypoint has been ready.
    pub introduction: Option<Verdict>,
    /// Condition of a Gateway: which objects keep another waypoint until the Gateway's has been ready.
    pub replaces: Option<Verdict>,
}

/// Entry of a list in the status, with its conditions.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Fields that identify the entry in the list.
    pub identity: BTreeMap<&'static str, Value>,
    /// Further fields of the entry.
    pub fields: BTreeMap<&'static str, Value>,
    /// Conditions of the entry, by type.
    pub conditions: Vec<(&'static str, Verdict)>,
}

/// Object that conditions are computed for, with its problems and its state.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Problems of the object.
    pub problems: &'a [Problem],
    /// Whether any rule of a policy is in effect.
    pub in_force: bool,
    /// Whether the object has `targetRefs`, so that waypoints enforce it.
    pub is_attached: bool,
    /// State of the object as far as it depends on other objects.
    pub standing: Option<&'a Standing>,
}

/// Condition on whether node proxies enforce a policy.
pub(crate) const ACCEPTED: ConditionType = ConditionType {
    name: "ZtunnelAccepted",
    manager: "istio-ambient-ztunnel-policy",
    verdict: |subject| (!subject.is_attached).then(|| policy(subject)),
    reports_problems: true,
    needs_standing: false,
};

/// Condition on whether a waypoint enforces a policy.
pub(crate) const WAYPOINT_ACCEPTED: ConditionType = ConditionType {
    name: "WaypointAccepted",
    manager: "istio-ambient-waypoint-policy",
    verdict: at_waypoints,
    reports_problems: true,
    needs_standing: true,
};

/// Condition on whether waypoints enforce a RequestAuthentication.
pub(crate) const AUTHENTICATION_ACCEPTED: ConditionType = ConditionType {
    verdict: with_problems,
    ..WAYPOINT_ACCEPTED
};
/// Condition on whether waypoints run a WasmPlugin.
pub(crate) const PLUGIN_ACCEPTED: ConditionType = ConditionType {
    manager: "ambit-wasm-plugin",
    verdict: with_problems,
    ..WAYPOINT_ACCEPTED
};

/// Condition on whether waypoints enforce a RateLimit.
pub(crate) const LIMIT_ACCEPTED: ConditionType = ConditionType {
    manager: "ambit-rate-limit",
    ..PLUGIN_ACCEPTED
};

/// Condition on the waypoint that a service is attached to.
pub(crate) const BOUND: ConditionType = ConditionType {
    name: "istio.io/WaypointBound",
    manager: "istio-ambient-service",
    verdict: |subject| subject.standing?.verdict.clone(),
    reports_problems: false,
    needs_standing: true,
};

/// Condition on the waypoint that a WorkloadEntry is attached to.
pub(crate) const BOUND_ENTRY: ConditionType = ConditionType {
    manager: "istio-ambient-workloadentry",
    ..BOUND
};

/// Condition on parts of a ServiceEntry or WorkloadEntry that have no effect; absent if there are none.
pub(crate) const USED: ConditionType = ConditionType {
    name: "ambit.io/Used",
    manager: "ambit-entry",
    verdict: used,
    reports_problems: true,
    needs_standing: false,
};

/// Condition that lists the waypoints that apply a DestinationRule.
pub(crate) const RULE_USED: ConditionType = ConditionType {
    manager: "ambit-destination-rule",
    verdict: with_problems,
    needs_standing: true,
    ..USED
};

/// Condition that lists the waypoints that apply a VirtualService.
pub(crate) const VIRTUAL_SERVICE_USED: ConditionType = ConditionType {
    manager: "ambit-virtual-service",
    ..RULE_USED
};

/// Condition that lists the routes that name an HTTPFault.
pub(crate) const FAULT_USED: ConditionType = ConditionType {
    manager: "ambit-http-fault",
    ..RULE_USED
};
/// Condition that lists the waypoints that apply a Telemetry object.
pub(crate) const TELEMETRY_USED: ConditionType = ConditionType {
    manager: "ambit-telemetry",
    ..RULE_USED
};

/// Condition that reports problems of a waypoint: of its Gateway, of its pods, and of policies without the expected
/// effect; absent if there are none.
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

/// Condition on whether a waypoint has been ready since its Gateway was created.
pub(crate) const INTRODUCED: ConditionType = ConditionType {
    name: "ambit.io/Introduced",
    manager: "ambit-introduction",
    verdict: |subject| subject.standing?.introduction.clone(),
    reports_problems: false,
    needs_standing: true,
};

/// Condition that lists the objects that keep another waypoint until the Gateway's has been ready; later processes read
/// it.
pub(crate) const REPLACES: ConditionType = ConditionType {
    name: "ambit.io/Replaces",
    manager: "ambit-replaces",
    verdict: |subject| subject.standing?.replaces.clone(),
    reports_problems: false,
    needs_standing: true,
};

/// Content of a status condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether its `status` is `True`.
    pub is_true: bool,
    /// `reason` of the condition.
    pub reason: &'static str,
    /// `message` of the condition.
    pub message: String,
    /// Whether the condition reports trouble that needs attention, whatever its status.
    pub is_trouble: bool,
}

/// Builds the condition of a policy that waypoints enforce; `None` without `targetRefs`.
fn at_waypoints(subject: &Subject<'_>) -> Option<Verdict> {
    subject.is_attached.then(|| with_problems(subject))?
}

/// Builds the condition from the object's state and its problems.
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

/// Builds the condition from the object's problems; `None` if it has none.
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

/// Joins the messages of problems to the message of a condition.
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
