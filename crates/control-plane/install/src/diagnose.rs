//! Diagnoses why a workload is not ready, from its pods, their events and their logs.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Event, Pod};

use crate::{
    cluster::ClusterApi,
    object::{self, ObjectRef},
    rollout::{Workload, is_ready, node_of, pod_problems},
};

/// Number of a container's log lines that are shown.
const MAX_LOG_LINES: i64 = 5;

/// Returns the reasons why a workload is not ready, each an indented line. Never fails: unavailable information is
/// skipped.
pub(crate) async fn explain_not_ready(cluster: &ClusterApi, name: &ObjectRef) -> Vec<String> {
    let mut lines = Vec::new();
    let namespace = name.namespace.as_deref();
    let Ok(Some(workload)) = Workload::read(cluster, name).await else {
        return lines;
    };
    lines.extend(event_lines(cluster, namespace, &name.name).await);
    for pod in workload.pods(cluster).await.into_iter().flatten() {
        let pod_name = object::name(&pod);
        let problems = pod_problems(&pod);
        if problems.is_empty() && is_ready(&pod) {
            continue;
        }
        let node = node_of(&pod).unwrap_or("no node yet");
        lines.push(format!("  Pod {pod_name} on {node}:"));
        lines.extend(problems.into_iter().map(|problem| format!("    {problem}")));
        lines.extend(event_lines(cluster, namespace, pod_name).await);
        lines.extend(log_lines(cluster, &pod).await);
    }
    lines
}

async fn event_lines(cluster: &ClusterApi, namespace: Option<&str>, name: &str) -> Vec<String> {
    let events: Vec<Event> = cluster
        .list_typed(namespace, None)
        .await
        .unwrap_or_default();
    let about = |event: &&Event| {
        event.involved_object.name.as_deref() == Some(name)
            && event.type_.as_deref() == Some("Warning")
    };
    let line = |event: &Event| {
        let reason = event.reason.as_deref().unwrap_or_default();
        let message = event.message.as_deref().unwrap_or_default();
        format!("    {reason}: {message}")
    };
    let lines: BTreeSet<_> = events.iter().filter(about).map(line).collect();
    lines.into_iter().collect()
}

async fn log_lines(cluster: &ClusterApi, pod: &Pod) -> Vec<String> {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_ref());
    let mut lines = Vec::new();
    for status in statuses
        .into_iter()
        .flatten()
        .filter(|status| !status.ready)
    {
        let container = &status.name;
        let state = status.state.as_ref();
        let running = state.is_some_and(|state| state.running.is_some());
        let (namespace, name) = (object::namespace_of(pod), object::name(pod));
        let log = cluster
            .logs(namespace, name, container, Some(MAX_LOG_LINES), !running)
            .await;
        let log = log.unwrap_or_default();
        lines.extend(
            log.lines()
                .map(|line| format!("    log of {container}: {line}")),
        );
    }
    lines
}
