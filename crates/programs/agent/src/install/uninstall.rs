//! Decides whether a terminating agent uninstalls the plugin. Pure.
//!
//! An agent is replaced far more often than it is removed: its plugin must stay then, or pods would start uncaptured
//! until the next agent runs. The `DaemonSet` distinguishes the two:
//! - it does not exist, is being deleted, or no longer selects this node: removed;
//! - the API server rejects the agent's credentials: its account or its rights are deleted, as when a chart is
//!   uninstalled object by object; an upgrade deletes neither: removed;
//! - the API server does not respond: the state is unknown, so nothing is undone.

use k8s_openapi::{
    api::{
        apps::v1::DaemonSet,
        core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

/// Result of reading the agent's `DaemonSet`.
#[derive(Debug)]
pub enum DaemonSetLookup {
    /// The `DaemonSet` exists.
    Found(Box<DaemonSet>),
    /// The `DaemonSet` does not exist.
    Absent,
    /// The API server denied the request with this HTTP status.
    Refused(u16),
    /// The API server did not respond, or failed.
    Unreachable(String),
}

/// Decision whether to uninstall the plugin, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UninstallDecision {
    /// The plugin stays installed for the next agent, for this reason.
    Keep(String),
    /// The plugin is uninstalled, for this reason.
    Remove(String),
}

/// Decides whether to uninstall the plugin; `node` is this node's object, if it could be read.
pub fn decide(lookup: &DaemonSetLookup, node: Option<&Node>) -> UninstallDecision {
    match lookup {
        DaemonSetLookup::Found(set) if set.metadata.deletion_timestamp.is_some() => {
            UninstallDecision::Remove("the DaemonSet is being deleted".to_owned())
        }
        DaemonSetLookup::Found(set) if node.is_some_and(|node| !is_scheduled_on(set, node)) => {
            UninstallDecision::Remove("the DaemonSet no longer wants this node".to_owned())
        }
        DaemonSetLookup::Found(_) => UninstallDecision::Keep("the DaemonSet stays".to_owned()),
        DaemonSetLookup::Absent => UninstallDecision::Remove("the DaemonSet is gone".to_owned()),
        DaemonSetLookup::Refused(status) => UninstallDecision::Remove(format!(
            "the API server answers {status}: this agent's account or its rights are gone"
        )),
        DaemonSetLookup::Unreachable(why) => {
            UninstallDecision::Keep(format!("the API server cannot be reached: {why}"))
        }
    }
}

/// Whether the plugin's executable may be removed with its configuration. Some runtimes store the plugin list that a
/// pod was started with, and call its plugins again when the pod ends, so they need the executable; containerd uses the
/// current list.
pub fn may_remove_file(node: Option<&Node>) -> bool {
    let status = node.and_then(|node| node.status.as_ref());
    let info = status.and_then(|status| status.node_info.as_ref());
    info.is_some_and(|info| info.container_runtime_version.starts_with("containerd://"))
}

/// Whether the `DaemonSet` schedules a pod on the node, by its node selector and required node affinity.
fn is_scheduled_on(set: &DaemonSet, node: &Node) -> bool {
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
            terms.any(|term| term_matches(term, &node.metadata))
        })
}

/// Whether a node selector term matches the node; an empty term matches nothing.
fn term_matches(term: &NodeSelectorTerm, node: &ObjectMeta) -> bool {
    let labels = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let label = |key: &str| node.labels.as_ref()?.get(key).map(String::as_str);
    let field = |key: &str| node.name.as_deref().filter(|_| key == "metadata.name");
    !(labels.is_empty() && fields.is_empty())
        && labels
            .iter()
            .all(|one| meets_requirement(one, label(&one.key)))
        && fields
            .iter()
            .all(|one| meets_requirement(one, field(&one.key)))
}

fn meets_requirement(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
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

    fn found_daemonset(set: Value) -> DaemonSetLookup {
        DaemonSetLookup::Found(Box::new(serde_json::from_value(set).unwrap()))
    }

    fn node(labels: &Value) -> Node {
        let node = json!({"metadata": {"name": "n1", "labels": labels}});
        serde_json::from_value(node).unwrap()
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

    fn decides_to_keep(lookup: &DaemonSetLookup, node: Option<&Node>) -> bool {
        matches!(decide(lookup, node), UninstallDecision::Keep(_))
    }

    #[test]
    fn plugin_file_is_removed_only_if_no_runtime_needs_it() {
        let with = |runtime: &str| {
            let info = json!({"containerRuntimeVersion": runtime, "architecture": "", "bootID": "",
                "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "",
                "operatingSystem": "", "osImage": "", "systemUUID": ""});
            let node = json!({"metadata": {}, "status": {"nodeInfo": info}});
            may_remove_file(Some(&serde_json::from_value(node).unwrap()))
        };
        assert!(with("containerd://1.7.1"));
        assert!(!with("cri-o://1.30.0"));
        assert!(!may_remove_file(Some(&node(&json!({})))) && !may_remove_file(None));
    }

    #[test]
    fn only_a_certain_removal_uninstalls() {
        let deleting = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        let plain = with_pods(json!({"containers": []}));
        for (lookup, expected) in [
            (found_daemonset(plain), true),
            (found_daemonset(json!({"metadata": {}})), true),
            (found_daemonset(deleting), false),
            (DaemonSetLookup::Absent, false),
            (DaemonSetLookup::Refused(401), false),
            (DaemonSetLookup::Refused(403), false),
            (DaemonSetLookup::Unreachable("timeout".to_owned()), true),
        ] {
            assert_eq!(decides_to_keep(&lookup, None), expected, "{lookup:?}");
            let node = node(&json!({}));
            assert_eq!(
                decides_to_keep(&lookup, Some(&node)),
                expected,
                "{lookup:?}"
            );
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
        let ours = node(&json!({"a": "1", "kubernetes.io/os": "linux"}));
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
            let lookup = found_daemonset(set.clone());
            assert_eq!(decides_to_keep(&lookup, Some(&ours)), expected, "{set}");
            assert!(
                decides_to_keep(&lookup, None),
                "a node that cannot be read decides nothing"
            );
        }
        assert!(!decides_to_keep(
            &found_daemonset(selector()),
            Some(&node(&json!({})))
        ));
    }
}
