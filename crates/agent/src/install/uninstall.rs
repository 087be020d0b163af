//! Whether an agent that is told to end takes the plugin along. Pure.
//!
//! An agent is ended to be replaced, far more often than to be removed: its plugin must stay then, or
//! pods would start uncaptured until the next agent comes. What tells the two apart is the `DaemonSet`:
//! - it is gone, is being deleted, or no longer wants this node: removed;
//! - the API server refuses us: our account or its rights are gone, as when a chart is uninstalled whose
//!   objects go one after the other; an upgrade takes neither away: removed;
//! - the API server does not answer: nothing is known, so nothing is undone.

use k8s_openapi::{
    api::{
        apps::v1::DaemonSet,
        core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

/// What is known of our `DaemonSet`.
#[derive(Debug)]
pub enum Lookup {
    /// It is there; the node too, if it could be read.
    Found(Box<DaemonSet>, Option<Box<Node>>),
    /// It is not.
    Absent,
    /// The API server does not let us ask: its status code.
    Refused(u16),
    /// The API server does not answer, or not in its right mind.
    Unreachable(String),
}

/// What becomes of the plugin, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It stays for the agent after us.
    Keep(String),
    /// It goes.
    Remove(String),
}

/// Decides.
pub fn decide(lookup: &Lookup) -> Decision {
    match lookup {
        Lookup::Found(set, _) if set.metadata.deletion_timestamp.is_some() => {
            Decision::Remove("the DaemonSet is being deleted".to_owned())
        }
        Lookup::Found(set, Some(node)) if !wants(set, node) => {
            Decision::Remove("the DaemonSet no longer wants this node".to_owned())
        }
        Lookup::Found(..) => Decision::Keep("the DaemonSet stays".to_owned()),
        Lookup::Absent => Decision::Remove("the DaemonSet is gone".to_owned()),
        Lookup::Refused(status) => Decision::Remove(format!(
            "the API server answers {status}: this agent's account or its rights are gone"
        )),
        Lookup::Unreachable(why) => {
            Decision::Keep(format!("the API server cannot be asked: {why}"))
        }
    }
}

/// Whether the set's pods may run on the node: its selector, and its required affinity.
fn wants(set: &DaemonSet, node: &Node) -> bool {
    let spec = set
        .spec
        .as_ref()
        .and_then(|spec| spec.template.spec.as_ref());
    let Some(spec) = spec else {
        return true;
    };
    let labels = node.metadata.labels.as_ref();
    let selected = spec
        .node_selector
        .iter()
        .flatten()
        .all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value));
    let affinity = spec.affinity.as_ref();
    let required = affinity
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|node| {
            node.required_during_scheduling_ignored_during_execution
                .as_ref()
        });
    selected
        && required.is_none_or(|required| {
            let mut terms = required.node_selector_terms.iter();
            terms.any(|term| matches(term, &node.metadata))
        })
}

/// An empty term matches nothing.
fn matches(term: &NodeSelectorTerm, node: &ObjectMeta) -> bool {
    let labels = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let label = |key: &str| node.labels.as_ref()?.get(key).map(String::as_str);
    let field = |key: &str| node.name.as_deref().filter(|_| key == "metadata.name");
    !(labels.is_empty() && fields.is_empty())
        && labels.iter().all(|one| meets(one, label(&one.key)))
        && fields.iter().all(|one| meets(one, field(&one.key)))
}

fn meets(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = value.is_some_and(|value| values.iter().any(|one| one == value));
    let order = || {
        let value: i64 = value?.parse().ok()?;
        let bound: i64 = values.first()?.parse().ok()?;
        Some(value.cmp(&bound))
    };
    match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => order().is_some_and(std::cmp::Ordering::is_gt),
        "Lt" => order().is_some_and(std::cmp::Ordering::is_lt),
        // Of the future: no reason to take anything down.
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn found(set: Value, labels: Option<Value>) -> Lookup {
        let node = labels.map(|labels| {
            let node = json!({"metadata": {"name": "n1", "labels": labels}});
            Box::new(serde_json::from_value(node).unwrap())
        });
        Lookup::Found(Box::new(serde_json::from_value(set).unwrap()), node)
    }

    fn with_pods(spec: Value) -> Value {
        json!({
            "metadata": {"name": "ambit-agent"},
            "spec": {"selector": {}, "template": {"spec": spec}},
        })
    }

    fn affinity(terms: Value) -> Value {
        let required = json!({"nodeSelectorTerms": terms});
        with_pods(json!({"containers": [], "affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": required}}}))
    }

    fn keeps(lookup: &Lookup) -> bool {
        matches!(decide(lookup), Decision::Keep(_))
    }

    #[test]
    fn only_what_shows_a_removal_removes() {
        let deleting = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        let plain = with_pods(json!({"containers": []}));
        for (lookup, expected) in [
            (found(plain.clone(), Some(json!({}))), true),
            (found(plain, None), true),
            (found(json!({"metadata": {}}), Some(json!({}))), true),
            (found(deleting, None), false),
            (Lookup::Absent, false),
            (Lookup::Refused(401), false),
            (Lookup::Refused(403), false),
            (Lookup::Unreachable("timeout".to_owned()), true),
        ] {
            assert_eq!(keeps(&lookup), expected, "{lookup:?}");
        }
    }

    #[test]
    fn a_set_that_no_longer_wants_the_node_removes() {
        let selector = || {
            let linux = json!({"kubernetes.io/os": "linux"});
            with_pods(json!({"containers": [], "nodeSelector": linux}))
        };
        let one = |key: &str, operator: &str, values: &[&str]| {
            affinity(json!([{"matchExpressions":
                [{"key": key, "operator": operator, "values": values}]}]))
        };
        let name = |value: &str| {
            affinity(json!([{"matchFields":
                [{"key": "metadata.name", "operator": "In", "values": [value]}]}]))
        };
        let labels = || Some(json!({"a": "1", "kubernetes.io/os": "linux"}));
        for (set, expected) in [
            (selector(), true),
            (one("a", "In", &["1", "2"]), true),
            (one("a", "In", &["2"]), false),
            (one("a", "NotIn", &["1"]), false),
            (one("b", "NotIn", &["1"]), true),
            (one("a", "Exists", &[]), true),
            (one("a", "DoesNotExist", &[]), false),
            (one("a", "Gt", &["0"]), true),
            (one("a", "Lt", &["1"]), false),
            (one("b", "Gt", &["0"]), false),
            (name("n1"), true),
            (name("n2"), false),
            (affinity(json!([{}])), false),
            (
                affinity(json!([{}, {"matchExpressions": [{"key": "a", "operator": "Exists"}]}])),
                true,
            ),
        ] {
            assert_eq!(keeps(&found(set.clone(), labels())), expected, "{set}");
            assert!(
                keeps(&found(set, None)),
                "a node that cannot be read decides nothing"
            );
        }
        assert!(!keeps(&found(selector(), Some(json!({})))));
    }
}
