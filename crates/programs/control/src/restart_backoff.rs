//! Replaces pods of agents and node proxies that kubelet holds back after their processes were killed. Done by the
//! leader only.
//!
//! Kubelet delays each restart of a container twice as long as the one before, up to five minutes, whatever ended it.
//! The delay belongs to the pod, so its DaemonSet's next pod starts at once. A pod is replaced only if none of its
//! containers runs: as long as one does, the node is served. A process that exits by itself, or that exceeds its
//! memory limit, would do so again; such a pod keeps its delay.

use std::{collections::BTreeMap, time::Duration};

use ambit_kube_kit::watch::{self as objects, ObjectId, Watch, WatchEvent};
use ambit_rt::{Backoff, ErrorChain};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::{
    Api, Client,
    api::{DeleteParams, Preconditions},
};
use tokio::time::Instant;

/// Values of the label `app` of the pods of agents and node proxies.
const APPS: [&str; 2] = ["ambit-agent", "ztunnel"];
/// First and longest pause between two replacements on one node.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));
/// Time without a replacement after which a node's pause is the first one again.
const CALM: Duration = Duration::from_secs(120);
/// Termination grace of a pod that is replaced, in seconds. None of its containers runs.
const GRACE_SECONDS: u32 = 1;
/// Exit code of a container whose process 1 got SIGKILL.
const KILLED: i32 = 137;

/// A pod none of whose containers runs, because kubelet holds back those that were killed.
#[derive(Clone, Debug, PartialEq)]
struct HeldBack {
    node: String,
    /// `resourceVersion` of the pod; a pod that has changed since is not deleted.
    version: String,
}

/// Times of the replacements on one node.
#[derive(Debug)]
struct Pace {
    backoff: Backoff,
    last: Instant,
    next: Instant,
}

/// The pods that are held back, and the pace of replacements by node. Pure.
#[derive(Debug, Default)]
struct Replacements {
    held_back: BTreeMap<ObjectId, HeldBack>,
    pace: BTreeMap<String, Pace>,
}

impl Replacements {
    fn apply(&mut self, event: WatchEvent<HeldBack>) {
        match event {
            WatchEvent::Object(id, pod) => drop(self.held_back.insert(id, pod)),
            WatchEvent::Gone(id) => drop(self.held_back.remove(&id)),
            WatchEvent::Listing | WatchEvent::Listed | WatchEvent::Away(_) => {}
        }
    }

    /// Returns the pods to replace now. Each is returned once; after a failed deletion, its next event adds it again.
    fn due(&mut self, now: Instant) -> Vec<(ObjectId, HeldBack)> {
        let pace = &mut self.pace;
        pace.retain(|_, pace| now < pace.last + CALM || now < pace.next);
        let is_due = |_: &ObjectId, pod: &mut HeldBack| match pace.get(&pod.node) {
            Some(pace) => pace.next <= now,
            None => true,
        };
        let due: Vec<_> = self.held_back.extract_if(.., is_due).collect();
        for (_, pod) in &due {
            let pace = self.pace.entry(pod.node.clone()).or_insert_with(|| Pace {
                backoff: Backoff::new(PAUSE.0, PAUSE.1, 0.0),
                last: now,
                next: now,
            });
            // Agent and node proxy of a node may be replaced together: that is one step.
            if pace.next <= now {
                pace.last = now;
                pace.next = now + pace.backoff.next_delay(0.5);
            }
        }
        due
    }

    /// Returns when the next pod that is held back may be replaced.
    fn next(&self) -> Option<Instant> {
        let pods = self.held_back.values();
        pods.filter_map(|pod| Some(self.pace.get(&pod.node)?.next))
            .min()
    }
}

/// The node and version of a pod of an agent or node proxy, if none of its containers runs and those that are held back
/// were killed.
fn held_back(pod: &Pod) -> Option<HeldBack> {
    let app = pod.metadata.labels.as_ref()?.get("app")?;
    if !APPS.contains(&app.as_str()) || pod.metadata.deletion_timestamp.is_some() {
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
    (containers.iter().all(is_stopped) && waiting.all(was_killed)).then_some(HeldBack {
        node: pod.spec.as_ref()?.node_name.clone()?,
        version: pod.metadata.resource_version.clone()?,
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
    last.is_some_and(|last| last.exit_code == KILLED && last.reason.as_deref() != Some("OOMKilled"))
}

/// Replaces pods in `namespace` that are held back, for as long as this replica leads.
pub(crate) async fn run(client: Client, namespace: String) {
    let pods = Api::<Pod>::namespaced(client, &namespace);
    let config = objects::config().labels("app");
    let mut watch = Watch::new("Pod", pods.clone(), config, held_back);
    let mut replacements = Replacements::default();
    loop {
        let next = replacements.next();
        tokio::select! {
            event = watch.next() => replacements.apply(event),
            () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
        }
        for (id, pod) in replacements.due(Instant::now()) {
            replace(&pods, &id, &pod).await;
        }
    }
}

async fn replace(pods: &Api<Pod>, id: &ObjectId, pod: &HeldBack) {
    let params = DeleteParams {
        grace_period_seconds: Some(GRACE_SECONDS),
        preconditions: Some(Preconditions {
            uid: Some(id.uid.to_string()),
            resource_version: Some(pod.version.clone()),
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
        // It has changed or is gone: the watch reports its present state.
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
        stopped("CrashLoopBackOff", KILLED, "Error")
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
    fn a_pod_is_held_back_if_no_container_runs_and_all_were_killed() {
        let expected = HeldBack {
            node: "n1".to_owned(),
            version: "7".to_owned(),
        };
        assert_eq!(held_back(&pod(&[killed()])), Some(expected.clone()));
        assert_eq!(
            held_back(&pod(&[killed(), killed()])),
            Some(expected.clone())
        );
        let creating = stopped("ContainerCreating", KILLED, "Error");
        assert_eq!(
            held_back(&pod(&[killed(), creating.clone()])),
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
                vec![stopped("CrashLoopBackOff", KILLED, "OOMKilled")],
            ),
        ] {
            assert_eq!(held_back(&pod(&containers)), None, "{what}");
        }
    }

    #[test]
    fn pods_of_other_components_are_left_alone() {
        let mut control = pod(&[killed()]);
        let labels = [("app".to_owned(), "istiod".to_owned())];
        control.metadata.labels = Some(labels.into());
        assert_eq!(held_back(&control), None);
    }

    #[test]
    fn a_pod_that_is_being_deleted_is_left_alone() {
        let mut deleted = pod(&[killed()]);
        let time = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        deleted.metadata.deletion_timestamp = Some(time);
        assert_eq!(held_back(&deleted), None);
    }

    fn event(name: &str, node: &str) -> WatchEvent<HeldBack> {
        let id = ObjectId {
            namespace: "s".into(),
            name: name.into(),
            uid: name.into(),
        };
        WatchEvent::Object(
            id,
            HeldBack {
                node: node.to_owned(),
                version: "1".to_owned(),
            },
        )
    }

    fn names(due: Vec<(ObjectId, HeldBack)>) -> Vec<String> {
        due.into_iter().map(|(id, _)| id.name.to_string()).collect()
    }

    #[test]
    fn replacements_on_one_node_slow_down_and_others_do_not_wait() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut replacements = Replacements::default();
        replacements.apply(event("agent", "n1"));
        replacements.apply(event("proxy", "n1"));
        assert_eq!(names(replacements.due(start)), ["agent", "proxy"]);
        assert_eq!(replacements.next(), None);

        replacements.apply(event("proxy-2", "n1"));
        replacements.apply(event("other", "n2"));
        let millis = |count| start + Duration::from_millis(count);
        assert_eq!(names(replacements.due(millis(900))), ["other"]);
        assert_eq!(replacements.next(), Some(after(1)));
        assert_eq!(names(replacements.due(after(1))), ["proxy-2"]);

        replacements.apply(event("proxy-3", "n1"));
        assert_eq!(names(replacements.due(millis(2_900))), [""; 0]);
        assert_eq!(names(replacements.due(after(3))), ["proxy-3"]);

        // Calm for long enough: the first pause again.
        replacements.apply(event("proxy-4", "n1"));
        assert_eq!(names(replacements.due(after(200))), ["proxy-4"]);
        replacements.apply(event("proxy-5", "n1"));
        assert_eq!(names(replacements.due(after(201))), ["proxy-5"]);
    }

    #[test]
    fn a_pod_that_runs_again_before_its_time_is_not_replaced() {
        let start = Instant::now();
        let mut replacements = Replacements::default();
        replacements.apply(event("proxy", "n1"));
        assert_eq!(replacements.due(start).len(), 1);
        replacements.apply(event("proxy-2", "n1"));
        let WatchEvent::Object(id, _) = event("proxy-2", "n1") else {
            unreachable!()
        };
        replacements.apply(WatchEvent::Gone(id));
        assert!(replacements.due(start + PAUSE.1).is_empty());
    }
}
