//! Which conditions should stand on an object. Pure.

use std::collections::BTreeMap;

use ambit_k8s_api::{Kind, labels};
use serde_json::Value;

use super::Seen;
use crate::problems::{Problem, Severity};

/// Longest message, in characters: a status is no log.
const LONGEST: usize = 1000;

/// A place for one condition: its type, and under which manager it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot {
    pub(super) condition: &'static str,
    pub(super) manager: &'static str,
}

const ZTUNNEL: Slot = Slot {
    condition: super::ACCEPTED,
    manager: "istio-ambient-ztunnel-policy",
};
const WAYPOINT: Slot = Slot {
    condition: "WaypointAccepted",
    manager: "istio-ambient-waypoint-policy",
};
const BOUND: Slot = Slot {
    condition: "istio.io/WaypointBound",
    manager: "istio-ambient-service",
};
const BOUND_ENTRY: Slot = Slot {
    manager: "istio-ambient-workloadentry",
    ..BOUND
};

const USED: Slot = Slot {
    condition: "ambit.io/Used",
    manager: "ambit-entry",
};

/// What a condition says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) is_true: bool,
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// Whether somebody should look at it.
    pub(super) is_trouble: bool,
}

/// Name in paths of the kinds that get conditions.
pub(super) fn plural(kind: Kind) -> Option<&'static str> {
    Some(match kind {
        Kind::AuthorizationPolicy => "authorizationpolicies",
        Kind::PeerAuthentication => "peerauthentications",
        Kind::Service => "services",
        Kind::ServiceEntry => "serviceentries",
        Kind::WorkloadEntry => "workloadentries",
        _ => return None,
    })
}

/// The places that objects of a kind have.
pub(super) fn slots(kind: Kind) -> &'static [Slot] {
    match kind {
        Kind::AuthorizationPolicy => &[ZTUNNEL, WAYPOINT],
        Kind::PeerAuthentication => &[ZTUNNEL],
        Kind::Service => &[BOUND],
        Kind::ServiceEntry => &[BOUND, USED],
        Kind::WorkloadEntry => &[BOUND_ENTRY, USED],
        _ => &[],
    }
}

/// What should stand in a place; nothing if `None`. `inherited` is the waypoint that the namespace names.
pub(super) fn verdict(slot: Slot, seen: &Seen, inherited: Option<&str>) -> Option<Verdict> {
    match slot.condition {
        super::ACCEPTED => (!seen.facts.is_attached).then(|| policy(seen)),
        "WaypointAccepted" => seen.facts.is_attached.then(|| Verdict {
            is_true: false,
            reason: "AncestorNotBound",
            message: "no target of this policy is bound to a waypoint: the policy has no effect"
                .to_owned(),
            is_trouble: true,
        }),
        "ambit.io/Used" => used(seen),
        _ => bound(seen, inherited),
    }
}

/// Of an entry that is used as it is, nothing is said.
fn used(seen: &Seen) -> Option<Verdict> {
    let is_broken = seen
        .problems
        .iter()
        .any(|problem| problem.severity == Severity::Error);
    (!seen.problems.is_empty()).then(|| Verdict {
        is_true: false,
        reason: if is_broken { "NotUsed" } else { "PartlyUsed" },
        message: text(&seen.problems),
        is_trouble: true,
    })
}

fn policy(seen: &Seen) -> Verdict {
    let is_broken = |problem: &Problem| problem.severity == Severity::Error;
    let (is_true, reason) = match seen.problems.as_slice() {
        [] => (true, "Accepted"),
        problems if problems.iter().any(is_broken) => {
            (false, if seen.in_force { "Outdated" } else { "Invalid" })
        }
        _ => (seen.in_force, "UnsupportedValue"),
    };
    let message = if seen.problems.is_empty() {
        "attached to ztunnel".to_owned()
    } else {
        text(&seen.problems)
    };
    Verdict {
        is_true,
        reason,
        message,
        is_trouble: !seen.problems.is_empty(),
    }
}

fn bound(seen: &Seen, inherited: Option<&str>) -> Option<Verdict> {
    let own = seen.facts.waypoint.as_deref();
    let name = own.or(inherited).filter(|name| *name != "none")?;
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
pub(super) fn text(problems: &[Problem]) -> String {
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
pub(super) fn waypoint(labels: Option<&BTreeMap<String, String>>) -> Option<String> {
    let labels = labels?;
    let name = labels
        .get(labels::USE_WAYPOINT)
        .filter(|name| !name.is_empty())?;
    Some(match labels.get(labels::USE_WAYPOINT_NAMESPACE) {
        Some(namespace) if name != "none" => format!("{namespace}/{name}"),
        _ => name.clone(),
    })
}

/// The conditions of a status.
pub(super) fn conditions(status: &Value) -> Vec<Value> {
    status
        .get("conditions")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default()
}
