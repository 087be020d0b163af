//! Why a workload is not ready: what its pods, their events and their logs say.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{cluster::Cluster, object::ObjectRef, rollout::pod_problems};

/// Lines of a log that are shown.
const LINES: i64 = 5;

/// What hinders a workload, a line each, indented. Never fails: what cannot be asked is left out.
pub(crate) async fn why(cluster: &Cluster, name: &ObjectRef) -> Vec<String> {
    let mut lines = Vec::new();
    let namespace = name.namespace.as_deref();
    let Ok(Some(object)) = cluster.get(name).await else {
        return lines;
    };
    lines.extend(events(cluster, namespace, &name.name).await);
    let pods = cluster
        .list("v1", "Pod", namespace, Some(&selector(&object)))
        .await;
    for pod in pods.into_iter().flatten() {
        let pod_name = text(&pod, "/metadata/name");
        let problems = pod_problems(&pod);
        if problems.is_empty() && is_ready(&pod) {
            continue;
        }
        let node = match text(&pod, "/spec/nodeName") {
            node if node.is_empty() => "no node yet".to_owned(),
            node => node,
        };
        lines.push(format!("  Pod {pod_name} on {node}:"));
        lines.extend(problems.into_iter().map(|problem| format!("    {problem}")));
        lines.extend(events(cluster, namespace, &pod_name).await);
        lines.extend(logs(cluster, &pod, &pod_name).await);
    }
    lines
}

/// The labels that select a workload's pods, as a query.
pub fn selector(workload: &Value) -> String {
    let labels = workload
        .pointer("/spec/selector/matchLabels")
        .and_then(Value::as_object);
    let pairs = labels.into_iter().flatten();
    let pairs = pairs.filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?)));
    pairs.collect::<Vec<_>>().join(",")
}

/// Whether a pod says that it is ready.
pub fn is_ready(pod: &Value) -> bool {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|condition| {
        text(condition, "/type") == "Ready" && text(condition, "/status") == "True"
    })
}

async fn events(cluster: &Cluster, namespace: Option<&str>, name: &str) -> Vec<String> {
    let events = cluster.list("v1", "Event", namespace, None).await;
    let about = |event: &&Value| {
        text(event, "/involvedObject/name") == name && text(event, "/type") == "Warning"
    };
    let events = events.unwrap_or_default();
    let lines: BTreeSet<_> = events
        .iter()
        .filter(about)
        .map(|event| {
            format!(
                "    {}: {}",
                text(event, "/reason"),
                text(event, "/message")
            )
        })
        .collect();
    lines.into_iter().collect()
}

async fn logs(cluster: &Cluster, pod: &Value, name: &str) -> Vec<String> {
    let namespace = text(pod, "/metadata/namespace");
    let statuses = pod
        .pointer("/status/containerStatuses")
        .and_then(Value::as_array);
    let mut lines = Vec::new();
    for status in statuses.into_iter().flatten() {
        if status.get("ready").and_then(Value::as_bool) == Some(true) {
            continue;
        }
        let container = text(status, "/name");
        let running = status.pointer("/state/running").is_some();
        let log = cluster
            .logs(&namespace, name, &container, Some(LINES), !running)
            .await;
        let log = log.unwrap_or_default();
        lines.extend(
            log.lines()
                .map(|line| format!("    log of {container}: {line}")),
        );
    }
    lines
}

fn text(value: &Value, path: &str) -> String {
    value
        .pointer(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}
