//! Desired status conditions of objects. This module does not read published conditions: the status writer compares
//! them with the desired ones.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::problem::{Problem, Severity};

/// Maximum length of a condition's message, in characters.
pub(crate) const MAX_MESSAGE_CHARS: usize = 1000;

/// Type of status condition, such as `WaypointAccepted`, with the function that builds it for an object.
#[derive(Clone, Copy, Debug)]
pub struct ConditionType {
    /// Name of the condition type, which is the condition's field `type`.
    pub name: &'static str,
    /// Field manager of server-side apply that writes the condition.
    pub manager: &'static str,
    /// Builds the content of the condition for an object; `None` removes the condition.
    pub build: fn(&ConditionInput<'_>) -> Option<ConditionContent>,
    /// Whether the condition reports the object's problems, so that they need no Kubernetes event.
    pub reports_problems: bool,
    /// Whether the condition depends on [`ConditionInput::derived_status`].
    pub needs_derived_status: bool,
}

/// List in an object's status whose entries have their own conditions, such as `parents` of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusListType {
    /// Name of the list in the status.
    pub list: &'static str,
    /// Field manager of server-side apply that writes the list.
    pub manager: &'static str,
    /// Whether other controllers write entries to the same list.
    pub is_shared: bool,
}

/// Status of an object as far as it depends on other objects, in the form of status conditions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DerivedStatus {
    /// Condition that names the waypoints which the object is attached to, or the waypoints or routes that use it.
    pub condition: Option<ConditionContent>,
    /// Entries of the object's status list, such as `parents` of a route, with their conditions.
    pub entries: Vec<StatusEntry>,
    /// Condition of a Gateway: whether its waypoint has been ready.
    pub introduced_condition: Option<ConditionContent>,
    /// Condition of a Gateway: which objects keep another waypoint until the Gateway's has been ready.
    pub replaces_condition: Option<ConditionContent>,
}

/// Entry of a list in an object's status, such as a route's `parents`, with its conditions.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusEntry {
    /// Fields that identify the entry in its list, such as the `name` of a listener.
    pub identity: BTreeMap<&'static str, Value>,
    /// Fields of the entry besides `identity` and `conditions`, such as `attachedRoutes` of a listener.
    pub other_fields: BTreeMap<&'static str, Value>,
    /// Conditions of the entry, by type.
    pub conditions: Vec<(&'static str, ConditionContent)>,
}

/// Object that status conditions are built for: its problems, and its derived status.
#[derive(Clone, Copy, Debug)]
pub struct ConditionInput<'a> {
    /// Problems of the object.
    pub problems: &'a [Problem],
    /// Whether any rule of the policy is in effect.
    pub is_in_force: bool,
    /// Whether the object has `targetRefs`, so that waypoints enforce it.
    pub is_attached: bool,
    /// Status of the object as far as it depends on other objects; `None` before it is computed.
    pub derived_status: Option<&'a DerivedStatus>,
}

/// Condition on whether node proxies enforce a policy.
pub(crate) const ZTUNNEL_ACCEPTED: ConditionType = ConditionType {
    name: "ZtunnelAccepted",
    manager: "istio-ambient-ztunnel-policy",
    build: |input| (!input.is_attached).then(|| ztunnel_accepted(input)),
    reports_problems: true,
    needs_derived_status: false,
};

/// Condition on whether a waypoint enforces a policy.
pub(crate) const WAYPOINT_ACCEPTED: ConditionType = ConditionType {
    name: "WaypointAccepted",
    manager: "istio-ambient-waypoint-policy",
    build: waypoint_accepted,
    reports_problems: true,
    needs_derived_status: true,
};

/// Condition on whether waypoints enforce a RequestAuthentication.
pub(crate) const AUTHENTICATION_ACCEPTED: ConditionType = ConditionType {
    build: waypoint_condition_with_problems,
    ..WAYPOINT_ACCEPTED
};
/// Condition on whether waypoints run a WasmPlugin.
pub(crate) const WASM_PLUGIN_ACCEPTED: ConditionType = ConditionType {
    manager: "ambit-wasm-plugin",
    build: waypoint_condition_with_problems,
    ..WAYPOINT_ACCEPTED
};

/// Condition on whether waypoints enforce a RateLimit.
pub(crate) const RATE_LIMIT_ACCEPTED: ConditionType = ConditionType {
    manager: "ambit-rate-limit",
    ..WASM_PLUGIN_ACCEPTED
};

/// Condition on the waypoint that a service is attached to.
pub(crate) const WAYPOINT_BOUND: ConditionType = ConditionType {
    name: "istio.io/WaypointBound",
    manager: "istio-ambient-service",
    build: |input| input.derived_status?.condition.clone(),
    reports_problems: false,
    needs_derived_status: true,
};

/// Condition on the waypoint that a WorkloadEntry is attached to.
pub(crate) const WORKLOAD_ENTRY_WAYPOINT_BOUND: ConditionType = ConditionType {
    manager: "istio-ambient-workloadentry",
    ..WAYPOINT_BOUND
};

/// Condition on parts of a ServiceEntry or WorkloadEntry that have no effect; absent if there are none.
pub(crate) const ENTRY_USED: ConditionType = ConditionType {
    name: "ambit.io/Used",
    manager: "ambit-entry",
    build: problems_condition,
    reports_problems: true,
    needs_derived_status: false,
};

/// Condition that lists the waypoints that apply a DestinationRule.
pub(crate) const DESTINATION_RULE_USED: ConditionType = ConditionType {
    manager: "ambit-destination-rule",
    build: waypoint_condition_with_problems,
    needs_derived_status: true,
    ..ENTRY_USED
};

/// Condition that lists the waypoints that apply a VirtualService.
pub(crate) const VIRTUAL_SERVICE_USED: ConditionType = ConditionType {
    manager: "ambit-virtual-service",
    ..DESTINATION_RULE_USED
};

/// Condition that lists the routes that name an HTTPFault.
pub(crate) const HTTP_FAULT_USED: ConditionType = ConditionType {
    manager: "ambit-http-fault",
    ..DESTINATION_RULE_USED
};
/// Condition that lists the waypoints that apply a Telemetry object.
pub(crate) const TELEMETRY_USED: ConditionType = ConditionType {
    manager: "ambit-telemetry",
    ..DESTINATION_RULE_USED
};

/// Condition that reports problems of a waypoint: of its Gateway, of its pods, and of policies without the expected
/// effect; absent if there are none.
pub(crate) const GATEWAY_EFFECTIVE: ConditionType = ConditionType {
    name: "ambit.io/Effective",
    manager: "ambit-gateway",
    build: |input| {
        // Gateways that are not our waypoints have no condition.
        input.derived_status?.condition.as_ref()?;
        problems_condition(input)
    },
    reports_problems: false,
    needs_derived_status: true,
};

/// Condition on whether a waypoint has been ready since its Gateway was created.
pub(crate) const WAYPOINT_INTRODUCED: ConditionType = ConditionType {
    name: "ambit.io/Introduced",
    manager: "ambit-introduction",
    build: |input| input.derived_status?.introduced_condition.clone(),
    reports_problems: false,
    needs_derived_status: true,
};

/// Condition that lists the objects that keep another waypoint until the Gateway's has been ready; a control plane that
/// restarts reads it.
pub(crate) const GATEWAY_REPLACES: ConditionType = ConditionType {
    name: "ambit.io/Replaces",
    manager: "ambit-replaces",
    build: |input| input.derived_status?.replaces_condition.clone(),
    reports_problems: false,
    needs_derived_status: true,
};

/// Status, reason and message of a status condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionContent {
    /// Whether the condition's `status` is `True`.
    pub is_true: bool,
    /// `reason` of the condition.
    pub reason: &'static str,
    /// `message` of the condition.
    pub message: String,
    /// Whether the condition reports trouble that needs attention, whatever its status.
    pub needs_attention: bool,
}

/// Builds the condition of a policy that waypoints enforce; `None` without `targetRefs`.
fn waypoint_accepted(input: &ConditionInput<'_>) -> Option<ConditionContent> {
    input
        .is_attached
        .then(|| waypoint_condition_with_problems(input))?
}

/// Builds the condition from the object's derived status and its problems.
fn waypoint_condition_with_problems(input: &ConditionInput<'_>) -> Option<ConditionContent> {
    let mut problems = input.problems.iter();
    if problems.any(|problem| problem.severity == Severity::Error) {
        return Some(ConditionContent {
            is_true: false,
            reason: "Invalid",
            message: join_messages(input.problems),
            needs_attention: true,
        });
    }
    let mut condition = input.derived_status?.condition.clone()?;
    if !input.problems.is_empty() {
        if condition.is_true {
            condition.reason = "PartiallyInvalid";
        }
        condition.message = format!("{}; {}", condition.message, join_messages(input.problems));
        condition.needs_attention = true;
    }
    Some(condition)
}

/// Builds the condition from the object's problems; `None` if it has none.
fn problems_condition(input: &ConditionInput<'_>) -> Option<ConditionContent> {
    let is_broken = input
        .problems
        .iter()
        .any(|problem| problem.severity == Severity::Error);
    (!input.problems.is_empty()).then(|| ConditionContent {
        is_true: false,
        reason: if is_broken { "NotUsed" } else { "PartlyUsed" },
        message: join_messages(input.problems),
        needs_attention: true,
    })
}

fn ztunnel_accepted(input: &ConditionInput<'_>) -> ConditionContent {
    let is_broken = |problem: &Problem| problem.severity == Severity::Error;
    let (is_true, reason) = match input.problems {
        [] => (true, "Accepted"),
        problems if problems.iter().any(is_broken) => (
            false,
            if input.is_in_force {
                "Outdated"
            } else {
                "Invalid"
            },
        ),
        _ => (input.is_in_force, "UnsupportedValue"),
    };
    let message = if input.problems.is_empty() {
        "attached to ztunnel".to_owned()
    } else {
        join_messages(input.problems)
    };
    ConditionContent {
        is_true,
        reason,
        message,
        needs_attention: !input.problems.is_empty(),
    }
}

/// Joins the messages of problems to one message of a condition.
pub fn join_messages(problems: &[Problem]) -> String {
    let one = |problem: &Problem| match problem.field.as_str() {
        "" | "." => problem.message.clone(),
        // Some messages name a field themselves, deeper than this.
        field if problem.message.starts_with(field) => problem.message.clone(),
        field => format!("{field}: {}", problem.message),
    };
    let all: Vec<_> = problems.iter().map(one).collect();
    all.join("; ").chars().take(MAX_MESSAGE_CHARS).collect()
}
