//! Replaces pods of agents and node proxies in kubelet's restart back-off after their processes were killed. Only the
//! leader does so.
//!
//! The kubelet doubles the delay of each restart of a container, up to five minutes, whatever ended it. The delay
//! belongs to the pod, so that its DaemonSet's next pod starts at once. A pod is replaced only if none of its
//! containers runs: as long as one does, the node is served. A process that exits by itself, or that exceeds its memory
//! limit, would do so again; such a pod keeps its delay.

use std::{collections::BTreeMap, time::Duration};

use ambit_kube_kit::watch::{self as objects, ObjectId, ObjectWatch, WatchEvent};
use ambit_rt::{Backoff, ErrorChain};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::{
    Api, Client,
    api::{DeleteParams, Preconditions},
};
use tokio::time::Instant;

/// Values of the label `app` on pods of agents and node proxies.
const APP_LABELS: [&str; 2] = ["ambit-agent", "ztunnel"];
/// First and longest delay between two replacements on one node.
const REPLACEMENT_DELAY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));
/// Time without a replacement after which a node's delay is reset.
const BACKOFF_RESET_TIME: Duration = Duration::from_secs(120);
/// Termination grace period of a replaced pod, in seconds. Short, since none of its containers runs.
const GRACE_SECONDS: u32 = 1;
/// Exit code of a container whose main process was killed by SIGKILL.
const SIGKILL_EXIT_CODE: i32 = 137;

/// Pod without a running container, whose killed containers are in restart back-off.
#[derive(Clone, Debug, PartialEq)]
struct BackOffPod {
    node: String,
    /// `resourceVersion` of the pod; a pod that has changed since is not deleted.
    resource_version: String,
}

/// Rate limit of replacements on one node.
#[derive(Debug)]
struct NodeBackoff {
    backoff: Backoff,
    last_replacement: Instant,
    next_replacement: Instant,
}

/// Pods in restart back-off, and rate limits by node. Does no IO.
#[derive(Debug, Default)]
struct ReplacementSchedule {
    in_back_off: BTreeMap<ObjectId, BackOffPod>,
    node_backoffs: BTreeMap<String, NodeBackoff>,
}

impl ReplacementSchedule {
    fn apply(&mut self, event: WatchEvent<BackOffPod>) {
        match event {
            WatchEvent::Object(id, pod) => drop(self.in_back_off.insert(id, pod)),
            WatchEvent::Removed(id) => drop(self.in_back_off.remove(&id)),
            WatchEvent::ListStarted | WatchEvent::ListCompleted | WatchEvent::Unavailable(_) => {}
        }
    }

    /// Returns the pods to replace now. Each is returned once; if its deletion fails, its next watch event adds it
    /// again.
    fn take_due(&mut self, now: Instant) -> Vec<(ObjectId, BackOffPod)> {
        let pace = &mut self.node_backoffs;
        pace.retain(|_, pace| {
            now < pace.last_replacement + BACKOFF_RESET_TIME || now < pace.next_replacement
        });
        let is_due = |_: &ObjectId, pod: &mut BackOffPod| match pace.get(&pod.node) {
            Some(pace) => pace.next_replacement <= now,
            None => true,
        };
        let due: Vec<_> = self.in_back_off.extract_if(.., is_due).collect();
        for (_, pod) in &due {
            let pace = self
                .node_backoffs
                .entry(pod.node.clone())
                .or_insert_with(|| NodeBackoff {
                    backoff: Backoff::new(REPLACEMENT_DELAY.0, REPLACEMENT_DELAY.1, 0.0),
                    last_replacement: now,
                    next_replacement: now,
                });
            // Agent and node proxy of a node may be replaced together, as one step.
            if pace.next_replacement <= now {
                pace.last_replacement = now;
                pace.next_replacement = now + pace.backoff.next_delay(0.5);
            }
        }
        due
    }

    /// Returns the time at which the next pod may be replaced.
    fn next_due(&self) -> Option<Instant> {
        let pods = self.in_back_off.values();
        pods.filter_map(|pod| Some(self.node_backoffs.get(&pod.node)?.next_replacement))
            .min()
    }
}

/// Returns node and version of a pod of an agent or node proxy, if none of its containers runs and all containers in
/// back-off were killed.
fn back_off_pod(pod: &Pod) -> Option<BackOffPod> {
    let app = pod.metadata.labels.as_ref()?.get("app")?;
    if !APP_LABELS.contains(&app.as_str()) || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let status = pod.status.as_ref()?;
    let containers = status.container_statuses.as_deref()?;
    let is_stopped = |container: &ContainerStatus| {
        let state = container.state.as_ref();
        state.is_some_and(|state| state.running.is_none())
    };
    let mut waiting = containers.iter().filter(|one| is_waiting(one)).peekable();
    waiting.peek()?;
    (containers.iter().all(is_stopped) && waiting.all(was_killed)).then_some(BackOffPod {
        node: pod.spec.as_ref()?.node_name.clone()?,
        resource_version: pod.metadata.resource_version.clone()?,
    })
}

fn is_waiting(container: &ContainerStatus) -> bool {
    let waiting = container
        .state
        .as_ref()
        .and_then(|state| state.waiting.as_ref());
    waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some("CrashLoopBackOff"))
}

fn was_killed(container: &ContainerStatus) -> bool {
    let last = container
        .last_state
        .as_ref()
        .and_then(|state| state.terminated.as_ref());
    last.is_some_and(|last| {
        last.exit_code == SIGKILL_EXIT_CODE && last.reason.as_deref() != Some("OOMKilled")
    })
}

/// Replaces pods in `namespace` that are in restart back-off; never returns.
pub(crate) async fn run(client: Client, namespace: String) {
    let pods = Api::<Pod>::namespaced(client, &namespace);
    let config = objects::watcher_config().labels("app");
    let mut watch = ObjectWatch::new("Pod", pods.clone(), config, back_off_pod);
    let mut replacements = ReplacementSchedule::default();
    loop {
        let next = replacements.next_due();
        tokio::select! {
            event = watch.next() => replacements.apply(event),
            () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
        }
        for (id, pod) in replacements.take_due(Instant::now()) {
            replace_pod(&pods, &id, &pod).await;
        }
    }
}

async fn replace_pod(pods: &Api<Pod>, id: &ObjectId, pod: &BackOffPod) {
    let params = DeleteParams {
        grace_period_seconds: Some(GRACE_SECONDS),
        preconditions: Some(Preconditions {
            uid: Some(id.uid.to_string()),
            resource_version: Some(pod.resource_version.clone()),
        }),
        ..DeleteParams::default()
    };
    let (namespace, name, node) = (&*id.namespace, &*id.name, &pod.node);
    match pods.delete(&id.name, &params).await {
        Ok(_) => tracing::warn!(
            pod = format_args!("{namespace}/{name}"),
            node,
            "its containers were killed and kubelet delays their restart: the pod is replaced"
        ),
        // The pod has changed or was deleted: the watch reports its present state.
        Err(kube::Error::Api(error)) if [404, 409].contains(&error.code) => {}
        Err(error) => {
            let error = ErrorChain(&error);
            tracing::warn!(
                pod = format_args!("{namespace}/{name}"), node, %error,
                "cannot replace a pod whose containers were killed; its restart takes as long as kubelet delays it"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn stopped(state: &str, exit_code: i32, reason: &str) -> Value {
        json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 2,
            "state": {"waiting": {"reason": state}},
            "lastState": {"terminated": {"exitCode": exit_code, "reason": reason}}})
    }

    fn killed() -> Value {
        stopped("CrashLoopBackOff", SIGKILL_EXIT_CODE, "Error")
    }

    fn running() -> Value {
        json!({"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "state": {"running": {}}})
    }

    fn pod(containers: &[Value]) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "resourceVersion": "7", "labels": {"app": "ztunnel"}},
            "spec": {"nodeName": "n1", "containers": []},
            "status": {"containerStatuses": containers},
        }))
        .unwrap()
    }

    #[test]
    fn pod_is_in_back_off_if_all_containers_were_killed() {
        let expected = BackOffPod {
            node: "n1".to_owned(),
            resource_version: "7".to_owned(),
        };
        assert_eq!(back_off_pod(&pod(&[killed()])), Some(expected.clone()));
        assert_eq!(
            back_off_pod(&pod(&[killed(), killed()])),
            Some(expected.clone())
        );
        let creating = stopped("ContainerCreating", SIGKILL_EXIT_CODE, "Error");
        assert_eq!(
            back_off_pod(&pod(&[killed(), creating.clone()])),
            Some(expected)
        );
        for (what, containers) in [
            ("none", vec![]),
            ("one runs", vec![killed(), running()]),
            ("not held back", vec![creating]),
            (
                "failed by itself",
                vec![stopped("CrashLoopBackOff", 1, "Error")],
            ),
            (
                "one failed by itself",
                vec![killed(), stopped("CrashLoopBackOff", 134, "Error")],
            ),
            (
                "over its memory limit",
                vec![stopped("CrashLoopBackOff", SIGKILL_EXIT_CODE, "OOMKilled")],
            ),
        ] {
            assert_eq!(back_off_pod(&pod(&containers)), None, "{what}");
        }
    }

    #[test]
    fn pods_of_other_components_are_ignored() {
        let mut control = pod(&[killed()]);
        let labels = [("app".to_owned(), "istiod".to_owned())];
        control.metadata.labels = Some(labels.into());
        assert_eq!(back_off_pod(&control), None);
    }

    #[test]
    fn terminating_pods_are_ignored() {
        let mut deleted = pod(&[killed()]);
        let time = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        deleted.metadata.deletion_timestamp = Some(time);
        assert_eq!(back_off_pod(&deleted), None);
    }

    fn event(name: &str, node: &str) -> WatchEvent<BackOffPod> {
        let id = ObjectId {
            namespace: "s".into(),
            name: name.into(),
            uid: name.into(),
        };
        WatchEvent::Object(
            id,
            BackOffPod {
                node: node.to_owned(),
                resource_version: "1".to_owned(),
            },
        )
    }

    fn names(due: Vec<(ObjectId, BackOffPod)>) -> Vec<String> {
        due.into_iter().map(|(id, _)| id.name.to_string()).collect()
    }

    #[test]
    fn replacements_are_rate_limited_by_node() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut replacements = ReplacementSchedule::default();
        replacements.apply(event("agent", "n1"));
        replacements.apply(event("proxy", "n1"));
        assert_eq!(names(replacements.take_due(start)), ["agent", "proxy"]);
        assert_eq!(replacements.next_due(), None);

        replacements.apply(event("proxy-2", "n1"));
        replacements.apply(event("other", "n2"));
        let millis = |count| start + Duration::from_millis(count);
        assert_eq!(names(replacements.take_due(millis(900))), ["other"]);
        assert_eq!(replacements.next_due(), Some(after(1)));
        assert_eq!(names(replacements.take_due(after(1))), ["proxy-2"]);

        replacements.apply(event("proxy-3", "n1"));
        assert_eq!(names(replacements.take_due(millis(2_900))), [""; 0]);
        assert_eq!(names(replacements.take_due(after(3))), ["proxy-3"]);

        // The quiet time has passed: the delay is the first one again.
        replacements.apply(event("proxy-4", "n1"));
        assert_eq!(names(replacements.take_due(after(200))), ["proxy-4"]);
        replacements.apply(event("proxy-5", "n1"));
        assert_eq!(names(replacements.take_due(after(201))), ["proxy-5"]);
    }

    #[test]
    fn pod_that_runs_again_is_not_replaced() {
        let start = Instant::now();
        let mut replacements = ReplacementSchedule::default();
        replacements.apply(event("proxy", "n1"));
        assert_eq!(replacements.take_due(start).len(), 1);
        replacements.apply(event("proxy-2", "n1"));
        let WatchEvent::Object(id, _) = event("proxy-2", "n1") else {
            unreachable!()
        };
        replacements.apply(WatchEvent::Removed(id));
        assert!(
            replacements
                .take_due(start + REPLACEMENT_DELAY.1)
                .is_empty()
        );
    }
}
