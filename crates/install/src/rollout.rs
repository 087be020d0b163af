//! Whether a workload stands as it should, and if not, what it waits for.

use serde_json::Value;

/// How far a Deployment or DaemonSet is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rollout {
    /// All its pods are new and ready.
    Done,
    /// Not yet; in words.
    Waiting(String),
}

/// How far `object` is. Objects without pods are done.
pub fn rollout(object: &Value) -> Rollout {
    let number = |path: &str| object.pointer(path).and_then(Value::as_i64).unwrap_or(0);
    let kind = object.get("kind").and_then(Value::as_str);
    let (wanted, updated, ready) = match kind.unwrap_or_default() {
        "Deployment" => (
            object
                .pointer("/spec/replicas")
                .and_then(Value::as_i64)
                .unwrap_or(1),
            number("/status/updatedReplicas"),
            number("/status/availableReplicas"),
        ),
        "DaemonSet" => (
            number("/status/desiredNumberScheduled"),
            number("/status/updatedNumberScheduled"),
            number("/status/numberAvailable"),
        ),
        _ => return Rollout::Done,
    };
    if number("/status/observedGeneration") < number("/metadata/generation") {
        return Rollout::Waiting("not looked at by its controller yet".to_owned());
    }
    if updated < wanted {
        return Rollout::Waiting(format!("{updated} of {wanted} pods are up to date"));
    }
    if ready < wanted {
        return Rollout::Waiting(format!("{ready} of {wanted} pods are ready"));
    }
    let surplus = number("/status/replicas") - wanted;
    if kind == Some("Deployment") && surplus > 0 {
        return Rollout::Waiting(format!("{surplus} old pods are still ending"));
    }
    Rollout::Done
}

/// Why a pod is not ready, one reason a line: what the scheduler, the kubelet and its containers say.
pub fn pod_problems(pod: &Value) -> Vec<String> {
    let text = |value: &Value, path: &str| {
        value
            .pointer(path)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let list = |path: &str| {
        pod.pointer(path)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
    };
    let mut problems = Vec::new();
    for status in list("/status/initContainerStatuses").chain(list("/status/containerStatuses")) {
        let name = text(status, "/name");
        let restarts = status
            .get("restartCount")
            .and_then(Value::as_i64)
            .unwrap_or(0);
        if let Some(waiting) = status.pointer("/state/waiting") {
            let message = text(waiting, "/message");
            let colon = if message.is_empty() { "" } else { ": " };
            problems.push(format!(
                "container {name}: {}{colon}{message}",
                text(waiting, "/reason")
            ));
        }
        if let Some(ended) = status.pointer("/lastState/terminated")
            && restarts > 0
        {
            let code = ended.get("exitCode").and_then(Value::as_i64).unwrap_or(0);
            let reason = text(ended, "/reason");
            problems.push(format!(
                "container {name}: ended {restarts} times, last with code {code} ({reason})"
            ));
        }
    }
    if !problems.is_empty() {
        return problems;
    }
    for condition in list("/status/conditions") {
        let (kind, status) = (text(condition, "/type"), text(condition, "/status"));
        let message = text(condition, "/message");
        if status == "False" && kind != "ContainersReady" && !message.is_empty() {
            problems.push(format!("{kind}: {message}"));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_daemonset_is_done_when_every_node_has_a_new_ready_pod() {
        let object = |status: Value| json!({"kind": "DaemonSet", "metadata": {"generation": 2}, "status": status});
        let wait = |text: &str| Rollout::Waiting(text.to_owned());
        for (status, expected) in [
            (
                json!({"observedGeneration": 1}),
                wait("not looked at by its controller yet"),
            ),
            (
                json!({"observedGeneration": 2, "desiredNumberScheduled": 2, "updatedNumberScheduled": 1, "numberAvailable": 2}),
                wait("1 of 2 pods are up to date"),
            ),
            (
                json!({"observedGeneration": 2, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberAvailable": 1}),
                wait("1 of 2 pods are ready"),
            ),
            (
                json!({"observedGeneration": 2, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberAvailable": 2}),
                Rollout::Done,
            ),
            (json!({"observedGeneration": 2}), Rollout::Done),
        ] {
            assert_eq!(rollout(&object(status.clone())), expected, "{status}");
        }
    }

    #[test]
    fn a_deployment_waits_for_its_old_pods_to_go() {
        let object = |status: Value| json!({"kind": "Deployment", "metadata": {"generation": 1}, "spec": {"replicas": 1}, "status": status});
        let old = json!({"observedGeneration": 1, "replicas": 2, "updatedReplicas": 1, "availableReplicas": 2});
        assert_eq!(
            rollout(&object(old)),
            Rollout::Waiting("1 old pods are still ending".to_owned())
        );
        let done = json!({"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1});
        assert_eq!(rollout(&object(done)), Rollout::Done);
        assert_eq!(rollout(&json!({"kind": "Service"})), Rollout::Done);
    }

    #[test]
    fn a_pod_tells_why_it_is_not_ready() {
        let pod = json!({"status": {
            "conditions": [{"type": "PodScheduled", "status": "False", "message": "no nodes"}],
        }});
        assert_eq!(pod_problems(&pod), ["PodScheduled: no nodes"]);
        let pod = json!({"status": {
            "conditions": [{"type": "Ready", "status": "False", "message": "x"}],
            "containerStatuses": [
                {"name": "a", "state": {"waiting": {"reason": "ErrImageNeverPull", "message": "no image"}}},
                {"name": "b", "restartCount": 3, "state": {"running": {}},
                 "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}}},
            ],
        }});
        assert_eq!(
            pod_problems(&pod),
            [
                "container a: ErrImageNeverPull: no image",
                "container b: ended 3 times, last with code 1 (Error)"
            ]
        );
        assert_eq!(pod_problems(&json!({})), Vec::<String>::new());
    }
}
