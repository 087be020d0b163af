//! Whether a workload stands as it should, and if not, what it waits for.
//!
//! A DaemonSet's own status does not tell: of the pods of a node its controller counts the oldest, which may
//! be a node proxy that goes on for an hour for the connections it has. So its pods are counted here.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{
    cluster::{Cluster, ClusterError},
    diagnose::{is_ready, selector},
    object::ObjectRef,
};

/// What a DaemonSet's controller counts its templates with, and what it marks their pods with.
const TEMPLATE: &str = "/metadata/annotations/deprecated.daemonset.template.generation";
const OF_TEMPLATE: &str = "/metadata/labels/pod-template-generation";

/// How far a Deployment or DaemonSet is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rollout {
    /// All its pods are new and ready.
    Done,
    /// Not yet; in words.
    Waiting(String),
}

/// How far the object of that name is; `None` if there is none.
///
/// # Errors
/// When the API server refuses or is away.
pub async fn rollout_of(
    cluster: &Cluster,
    name: &ObjectRef,
) -> Result<Option<Rollout>, ClusterError> {
    let Some(object) = cluster.get(name).await? else {
        return Ok(None);
    };
    let pods = match name.kind.as_str() {
        "DaemonSet" => pods_of(cluster, &object).await?,
        _ => Vec::new(),
    };
    Ok(Some(rollout(&object, &pods)))
}

/// The pods that a workload's labels select.
///
/// # Errors
/// When the API server refuses or is away.
pub async fn pods_of(cluster: &Cluster, object: &Value) -> Result<Vec<Value>, ClusterError> {
    let namespace = object
        .pointer("/metadata/namespace")
        .and_then(Value::as_str);
    cluster
        .list("v1", "Pod", namespace, Some(&selector(object)))
        .await
}

/// Pods of a DaemonSet that have been told to end and have not.
pub fn draining<'a>(object: &Value, pods: &'a [Value]) -> Vec<&'a Value> {
    owned(object, pods).filter(|pod| is_ending(pod)).collect()
}

fn owned<'a>(object: &Value, pods: &'a [Value]) -> impl Iterator<Item = &'a Value> {
    let uid = object.pointer("/metadata/uid").and_then(Value::as_str);
    let uid = uid.unwrap_or_default().to_owned();
    pods.iter().filter(move |pod| {
        let owners = pod
            .pointer("/metadata/ownerReferences")
            .and_then(Value::as_array);
        let mut owners = owners.into_iter().flatten();
        owners.any(|owner| owner.get("uid").and_then(Value::as_str) == Some(&uid))
    })
}

fn is_ending(pod: &Value) -> bool {
    pod.pointer("/metadata/deletionTimestamp").is_some()
}

/// On how many nodes a DaemonSet has a pod of its newest template, and on how many that is ready.
fn newest(object: &Value, pods: &[Value]) -> (i64, i64) {
    let template = object.pointer(TEMPLATE).and_then(Value::as_str);
    let of_newest = |pod: &&Value| {
        !is_ending(pod) && pod.pointer(OF_TEMPLATE).and_then(Value::as_str) == template
    };
    let node = |pod: &Value| {
        pod.pointer("/spec/nodeName")
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    let new: Vec<_> = owned(object, pods).filter(of_newest).collect();
    let nodes: BTreeSet<_> = new.iter().filter_map(|pod| node(pod)).collect();
    let ready = new.iter().filter(|pod| is_ready(pod));
    let ready: BTreeSet<_> = ready.filter_map(|pod| node(pod)).collect();
    let count = |nodes: BTreeSet<_>| i64::try_from(nodes.len()).unwrap_or(i64::MAX);
    (count(nodes), count(ready))
}

/// How far `object` is, `pods` being those of a DaemonSet. Objects without pods are done.
pub fn rollout(object: &Value, pods: &[Value]) -> Rollout {
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
        "DaemonSet" => {
            let (updated, ready) = newest(object, pods);
            (number("/status/desiredNumberScheduled"), updated, ready)
        }
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

/// Why a kubelet waits with a container if it cannot have its image.
const NO_IMAGE: [&str; 5] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "RegistryUnavailable",
];

/// The images of a pod that its kubelet cannot have, and what it says about each.
pub fn missing_images(pod: &Value) -> Vec<(String, String)> {
    let list = |path: &str| {
        let list = pod.pointer(path).and_then(Value::as_array);
        list.into_iter().flatten()
    };
    let image = |name: &str| {
        let mut containers = list("/spec/initContainers").chain(list("/spec/containers"));
        let container =
            containers.find(|one| one.get("name").and_then(Value::as_str) == Some(name));
        Some(container?.get("image")?.as_str()?.to_owned())
    };
    let missing = |status: &Value| {
        let text = |path: &str| status.pointer(path).and_then(Value::as_str);
        let reason = text("/state/waiting/reason")?;
        let message = text("/state/waiting/message").unwrap_or_default();
        NO_IMAGE
            .contains(&reason)
            .then(|| Some((image(text("/name")?)?, format!("{reason}: {message}"))))?
    };
    list("/status/initContainerStatuses")
        .chain(list("/status/containerStatuses"))
        .filter_map(missing)
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, node: &str, template: &str, ready: bool, ending: bool) -> Value {
        let mut pod = json!({
            "metadata": {
                "name": name,
                "labels": {"pod-template-generation": template},
                "ownerReferences": [{"uid": "set"}],
            },
            "spec": {"nodeName": node},
            "status": {"conditions": [
                {"type": "Ready", "status": if ready { "True" } else { "False" }}]},
        });
        if ending {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:09Z");
        }
        pod
    }

    #[test]
    fn a_daemonset_is_done_when_every_node_has_a_new_ready_pod_whatever_old_ones_still_drain() {
        // The controller counts the oldest pod of a node.
        let object = |observed: i64| {
            json!({
                "kind": "DaemonSet",
                "metadata": {"uid": "set", "generation": 2,
                    "annotations": {"deprecated.daemonset.template.generation": "2"}},
                "status": {"observedGeneration": observed, "desiredNumberScheduled": 2,
                    "updatedNumberScheduled": 0, "numberAvailable": 2},
            })
        };
        let wait = |text: &str| Rollout::Waiting(text.to_owned());
        let old = pod("old", "a", "1", true, true);
        let mut foreign = pod("foreign", "b", "2", true, false);
        foreign["metadata"]["ownerReferences"][0]["uid"] = json!("another");
        let mut pods = vec![old, foreign, pod("new-a", "a", "2", true, false)];
        let waiting = wait("not looked at by its controller yet");
        assert_eq!(rollout(&object(1), &pods), waiting);
        assert_eq!(
            rollout(&object(2), &pods),
            wait("1 of 2 pods are up to date")
        );
        pods.push(pod("new-b", "b", "2", false, false));
        assert_eq!(rollout(&object(2), &pods), wait("1 of 2 pods are ready"));
        pods.push(pod("new-b-2", "b", "2", true, false));
        assert_eq!(rollout(&object(2), &pods), Rollout::Done);
        let names: Vec<_> = draining(&object(2), &pods)
            .iter()
            .map(|pod| pod["metadata"]["name"].clone())
            .collect();
        assert_eq!(names, ["old"]);
        let nowhere = json!({"kind": "DaemonSet", "status": {}});
        assert_eq!(rollout(&nowhere, &[]), Rollout::Done);
    }

    #[test]
    fn a_deployment_waits_for_its_old_pods_to_go() {
        let object = |status: Value| json!({"kind": "Deployment", "metadata": {"generation": 1}, "spec": {"replicas": 1}, "status": status});
        let old = json!({"observedGeneration": 1, "replicas": 2, "updatedReplicas": 1, "availableReplicas": 2});
        assert_eq!(
            rollout(&object(old), &[]),
            Rollout::Waiting("1 old pods are still ending".to_owned())
        );
        let done = json!({"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1});
        assert_eq!(rollout(&object(done), &[]), Rollout::Done);
        assert_eq!(rollout(&json!({"kind": "Service"}), &[]), Rollout::Done);
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

    #[test]
    fn a_pod_tells_which_image_it_cannot_have() {
        let waiting = |reason: &str| json!({"waiting": {"reason": reason, "message": "not found"}});
        let pod = json!({
            "spec": {"containers": [
                {"name": "a", "image": "hub/agent:1"}, {"name": "b", "image": "hub/node-proxy:1"}]},
            "status": {"containerStatuses": [
                {"name": "a", "state": waiting("ImagePullBackOff")},
                {"name": "b", "state": waiting("ContainerCreating")}]},
        });
        let missing = (
            "hub/agent:1".to_owned(),
            "ImagePullBackOff: not found".to_owned(),
        );
        assert_eq!(missing_images(&pod), [missing]);
        assert!(missing_images(&json!({})).is_empty());
    }
}
