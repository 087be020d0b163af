//! Rollout state of a workload: whether all its pods are ready and of the newest template, and what it waits for.
//!
//! The status of a DaemonSet does not suffice: its controller counts the oldest pod of a node, which may be a node
//! proxy that drains its connections for an hour. So its pods are counted here.

use std::collections::BTreeSet;

use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, Deployment},
        core::v1::{ContainerState, ContainerStatus, Pod},
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};
use kube::Resource as _;

use crate::{
    cluster::{ClusterApi, ClusterError},
    object::{ObjectRef, annotation, label},
};

/// Annotation in which a DaemonSet's controller stores the generation of the pod template.
const TEMPLATE_GENERATION_ANNOTATION: &str = "deprecated.daemonset.template.generation";
const POD_TEMPLATE_GENERATION_LABEL: &str = "pod-template-generation";

/// Workload whose pods an installation waits for.
#[derive(Clone, Debug)]
pub enum Workload {
    /// Deployment with its status.
    Deployment(Box<Deployment>),
    /// DaemonSet with its status.
    DaemonSet(Box<DaemonSet>),
}

impl Workload {
    /// Returns whether a kind is that of workloads: Deployment or DaemonSet.
    pub fn is_workload_kind(kind: &str) -> bool {
        matches!(kind, "Deployment" | "DaemonSet")
    }

    /// Returns the workload of that name; `None` if it does not exist or is not a workload.
    ///
    /// # Errors
    ///
    /// When the API server refuses or is unavailable.
    pub async fn read(
        cluster: &ClusterApi,
        name: &ObjectRef,
    ) -> Result<Option<Self>, ClusterError> {
        let namespace = name.namespace.as_deref();
        Ok(match name.kind.as_str() {
            "Deployment" => {
                let found = cluster.get_typed(namespace, &name.name).await?;
                found.map(|object| Self::Deployment(Box::new(object)))
            }
            "DaemonSet" => {
                let found = cluster.get_typed(namespace, &name.name).await?;
                found.map(|object| Self::DaemonSet(Box::new(object)))
            }
            _ => None,
        })
    }

    /// Returns the metadata of the workload.
    pub fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Deployment(object) => object.meta(),
            Self::DaemonSet(object) => object.meta(),
        }
    }

    fn selector(&self) -> Option<&LabelSelector> {
        Some(match self {
            Self::Deployment(object) => &object.spec.as_ref()?.selector,
            Self::DaemonSet(object) => &object.spec.as_ref()?.selector,
        })
    }

    /// Lists the pods that the workload's selector selects.
    ///
    /// # Errors
    ///
    /// When the API server refuses or is unavailable.
    pub async fn pods(&self, cluster: &ClusterApi) -> Result<Vec<Pod>, ClusterError> {
        let labels = self.selector().and_then(|all| all.match_labels.as_ref());
        let pairs = labels.into_iter().flatten();
        let pairs: Vec<_> = pairs.map(|(key, value)| format!("{key}={value}")).collect();
        let namespace = self.meta().namespace.as_deref();
        cluster.list_typed(namespace, Some(&pairs.join(","))).await
    }

    /// Returns the state of the rollout; `pods` are needed only for a DaemonSet.
    pub fn rollout(&self, pods: &[Pod]) -> Rollout {
        match self {
            Self::Deployment(object) => deployment_rollout(object),
            Self::DaemonSet(object) => daemon_set_rollout(object, pods),
        }
    }
}

/// State of the rollout of a Deployment or DaemonSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rollout {
    /// All pods are of the newest template and ready.
    Done,
    /// The rollout is in progress; the text for people describes what it waits for.
    InProgress(String),
}

/// Returns the rollout state of the workload of that name; `None` if there is none.
///
/// # Errors
///
/// When the API server refuses or is unavailable.
pub async fn rollout_of(
    cluster: &ClusterApi,
    name: &ObjectRef,
) -> Result<Option<Rollout>, ClusterError> {
    let Some(workload) = Workload::read(cluster, name).await? else {
        return Ok(None);
    };
    let pods = match workload {
        Workload::DaemonSet(_) => workload.pods(cluster).await?,
        Workload::Deployment(_) => Vec::new(),
    };
    Ok(Some(workload.rollout(&pods)))
}

/// Returns pods of a DaemonSet that are terminating.
pub fn terminating_pods<'a>(set: &DaemonSet, pods: &'a [Pod]) -> Vec<&'a Pod> {
    owned_pods(set, pods)
        .filter(|pod| is_terminating(pod))
        .collect()
}

fn owned_pods<'a>(set: &DaemonSet, pods: &'a [Pod]) -> impl Iterator<Item = &'a Pod> {
    let uid = set.metadata.uid.clone().unwrap_or_default();
    pods.iter().filter(move |pod| {
        let mut owners = pod.metadata.owner_references.iter().flatten();
        owners.any(|owner| owner.uid == uid)
    })
}

/// Returns whether a pod is being deleted.
pub fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Returns the node that a pod is scheduled to.
pub fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// Returns whether a pod's condition `Ready` is true.
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Counts the nodes on which a DaemonSet has a pod of its newest template, and the nodes on which that pod is ready.
fn newest_generation_counts(set: &DaemonSet, pods: &[Pod]) -> (i64, i64) {
    let template = annotation(set, TEMPLATE_GENERATION_ANNOTATION);
    let of_newest =
        |pod: &&Pod| !is_terminating(pod) && label(*pod, POD_TEMPLATE_GENERATION_LABEL) == template;
    let new: Vec<_> = owned_pods(set, pods).filter(of_newest).collect();
    let nodes: BTreeSet<_> = new.iter().filter_map(|pod| node_of(pod)).collect();
    let ready = new.iter().filter(|pod| is_ready(pod));
    let ready: BTreeSet<_> = ready.filter_map(|pod| node_of(pod)).collect();
    let count = |nodes: BTreeSet<_>| i64::try_from(nodes.len()).unwrap_or(i64::MAX);
    (count(nodes), count(ready))
}

/// Returns the rollout state of a Deployment.
pub fn deployment_rollout(object: &Deployment) -> Rollout {
    let status = object.status.clone().unwrap_or_default();
    let wanted = object.spec.as_ref().and_then(|spec| spec.replicas);
    let wanted = i64::from(wanted.unwrap_or(1));
    let count = |replicas: Option<i32>| replicas.map_or(0, i64::from);
    let behind = describe_pending_rollout(
        (object.metadata.generation, status.observed_generation),
        wanted,
        count(status.updated_replicas),
        count(status.available_replicas),
    );
    let surplus = count(status.replicas) - wanted;
    match behind {
        Some(what) => Rollout::InProgress(what),
        None if surplus > 0 => Rollout::InProgress(format!("{surplus} old pods are still ending")),
        None => Rollout::Done,
    }
}

/// Returns the rollout state of a DaemonSet with these pods.
pub fn daemon_set_rollout(object: &DaemonSet, pods: &[Pod]) -> Rollout {
    let status = object.status.as_ref();
    let (updated, ready) = newest_generation_counts(object, pods);
    let behind = describe_pending_rollout(
        (
            object.metadata.generation,
            status.and_then(|status| status.observed_generation),
        ),
        status.map_or(0, |status| i64::from(status.desired_number_scheduled)),
        updated,
        ready,
    );
    behind.map_or(Rollout::Done, Rollout::InProgress)
}

/// Describes what a rollout waits for, from the generations of the workload and of its status, and the numbers of
/// desired, updated and ready pods; `None` if it is complete.
fn describe_pending_rollout(
    (own, seen): (Option<i64>, Option<i64>),
    desired: i64,
    updated: i64,
    ready: i64,
) -> Option<String> {
    if seen.unwrap_or(0) < own.unwrap_or(0) {
        return Some("not looked at by its controller yet".to_owned());
    }
    if updated < desired {
        return Some(format!("{updated} of {desired} pods are up to date"));
    }
    (ready < desired).then(|| format!("{ready} of {desired} pods are ready"))
}

/// Returns the statuses of a pod's containers, init containers first.
fn container_statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let first = status.and_then(|status| status.init_container_statuses.as_ref());
    let then = status.and_then(|status| status.container_statuses.as_ref());
    first.into_iter().chain(then).flatten()
}

/// Returns the reasons why a pod is not ready, each one line, as the scheduler, the kubelet and the containers report
/// them.
pub fn pod_problems(pod: &Pod) -> Vec<String> {
    let mut problems = Vec::new();
    for status in container_statuses(pod) {
        let name = &status.name;
        if let Some(waiting) = status
            .state
            .as_ref()
            .and_then(|state| state.waiting.as_ref())
        {
            let message = waiting.message.as_deref().unwrap_or_default();
            let colon = if message.is_empty() { "" } else { ": " };
            let reason = waiting.reason.as_deref().unwrap_or_default();
            problems.push(format!("container {name}: {reason}{colon}{message}"));
        }
        let last = status.last_state.as_ref();
        if let Some(ended) = last.and_then(|state| state.terminated.as_ref())
            && status.restart_count > 0
        {
            problems.push(format!(
                "container {name}: ended {} times, last with code {} ({})",
                status.restart_count,
                ended.exit_code,
                ended.reason.as_deref().unwrap_or_default()
            ));
        }
    }
    if !problems.is_empty() {
        return problems;
    }
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    for condition in conditions.into_iter().flatten() {
        let message = condition.message.as_deref().unwrap_or_default();
        let kind = &condition.type_;
        if condition.status == "False" && kind != "ContainersReady" && !message.is_empty() {
            problems.push(format!("{kind}: {message}"));
        }
    }
    problems
}

/// Reasons of a waiting container that are part of a normal start.
const STARTING_REASONS: [&str; 3] = ["", "ContainerCreating", "PodInitializing"];

/// Returns the containers of a pod that the kubelet cannot start: container, reason, and the kubelet's message after a
/// colon.
pub(crate) fn container_problems(pod: &Pod) -> Vec<(String, String, String)> {
    let hindrance = |status: &ContainerStatus| {
        let waiting = status.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.clone().unwrap_or_default();
        let message = waiting.message.as_deref().unwrap_or_default();
        let colon = if message.is_empty() { "" } else { ": " };
        (!STARTING_REASONS.contains(&reason.as_str()))
            .then(|| (status.name.clone(), reason, format!("{colon}{message}")))
    };
    container_statuses(pod).filter_map(hindrance).collect()
}

/// Returns whether no container of a pod runs and the kubelet delays the next start of one.
pub(crate) fn is_in_back_off(pod: &Pod) -> bool {
    let runs = |status: &ContainerStatus| {
        let state = status.state.as_ref();
        state.is_some_and(|state| state.running.is_some())
    };
    !container_problems(pod).is_empty() && !container_statuses(pod).any(runs)
}

/// Reasons of a waiting container whose image the kubelet cannot pull.
const IMAGE_PULL_REASONS: [&str; 5] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "RegistryUnavailable",
];

/// Returns the images of a pod that its kubelet cannot pull, with the error of each.
pub fn missing_images(pod: &Pod) -> Vec<(String, String)> {
    let image = |name: &str| {
        let spec = pod.spec.as_ref()?;
        let containers = spec.init_containers.iter().flatten();
        let mut containers = containers.chain(&spec.containers);
        containers.find(|one| one.name == name)?.image.clone()
    };
    let missing = |status: &ContainerStatus| {
        let ContainerState { waiting, .. } = status.state.as_ref()?;
        let waiting = waiting.as_ref()?;
        let reason = waiting.reason.as_deref()?;
        let message = waiting.message.as_deref().unwrap_or_default();
        IMAGE_PULL_REASONS
            .contains(&reason)
            .then(|| Some((image(&status.name)?, format!("{reason}: {message}"))))?
    };
    container_statuses(pod).filter_map(missing).collect()
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn typed<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn pod(name: &str, node: &str, template: &str, ready: bool, ending: bool) -> Pod {
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
        typed(pod)
    }

    #[test]
    fn daemonset_is_done_when_each_node_has_a_new_ready_pod() {
        // The controller counts the oldest pod of a node.
        let object = |observed: i64| -> DaemonSet {
            typed(json!({
                "kind": "DaemonSet",
                "metadata": {"uid": "set", "generation": 2,
                    "annotations": {"deprecated.daemonset.template.generation": "2"}},
                "status": {"observedGeneration": observed, "desiredNumberScheduled": 2,
                    "updatedNumberScheduled": 0, "numberAvailable": 2},
            }))
        };
        let wait = |text: &str| Rollout::InProgress(text.to_owned());
        let old = pod("old", "a", "1", true, true);
        let mut foreign = pod("foreign", "b", "2", true, false);
        foreign.metadata.owner_references.as_mut().unwrap()[0].uid = "another".to_owned();
        let mut pods = vec![old, foreign, pod("new-a", "a", "2", true, false)];
        let waiting = wait("not looked at by its controller yet");
        assert_eq!(daemon_set_rollout(&object(1), &pods), waiting);
        assert_eq!(
            daemon_set_rollout(&object(2), &pods),
            wait("1 of 2 pods are up to date")
        );
        pods.push(pod("new-b", "b", "2", false, false));
        assert_eq!(
            daemon_set_rollout(&object(2), &pods),
            wait("1 of 2 pods are ready")
        );
        pods.push(pod("new-b-2", "b", "2", true, false));
        assert_eq!(daemon_set_rollout(&object(2), &pods), Rollout::Done);
        let names: Vec<_> = terminating_pods(&object(2), &pods)
            .iter()
            .map(|pod| crate::object::name(*pod))
            .collect();
        assert_eq!(names, ["old"]);
        assert_eq!(
            daemon_set_rollout(&DaemonSet::default(), &[]),
            Rollout::Done
        );
    }

    #[test]
    fn deployment_waits_for_its_old_pods_to_end() {
        let object = |status: Value| -> Deployment {
            typed(json!({"metadata": {"generation": 1}, "spec": {"replicas": 1}, "status": status}))
        };
        let old = json!({"observedGeneration": 1, "replicas": 2, "updatedReplicas": 1, "availableReplicas": 2});
        assert_eq!(
            deployment_rollout(&object(old)),
            Rollout::InProgress("1 old pods are still ending".to_owned())
        );
        let done = json!({"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1});
        assert_eq!(deployment_rollout(&object(done)), Rollout::Done);
        assert!(Workload::is_workload_kind("Deployment") && !Workload::is_workload_kind("Service"));
    }

    #[test]
    fn pod_problems_are_described() {
        let pod: Pod = typed(json!({"status": {
            "conditions": [{"type": "PodScheduled", "status": "False", "message": "no nodes"}],
        }}));
        assert_eq!(pod_problems(&pod), ["PodScheduled: no nodes"]);
        let pod: Pod = typed(json!({"status": {
            "conditions": [{"type": "Ready", "status": "False", "message": "x"}],
            "containerStatuses": [
                {"name": "a", "state": {"waiting": {"reason": "ErrImageNeverPull", "message": "no image"}}},
                {"name": "b", "restartCount": 3, "state": {"running": {}},
                 "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}}},
            ],
        }}));
        assert_eq!(
            pod_problems(&pod),
            [
                "container a: ErrImageNeverPull: no image",
                "container b: ended 3 times, last with code 1 (Error)"
            ]
        );
        assert_eq!(pod_problems(&Pod::default()), Vec::<String>::new());
    }

    #[test]
    fn unpullable_images_are_found() {
        let waiting = |reason: &str| json!({"waiting": {"reason": reason, "message": "not found"}});
        let pod = typed(json!({
            "spec": {"containers": [
                {"name": "a", "image": "hub/agent:1"}, {"name": "b", "image": "hub/node-proxy:1"}]},
            "status": {"containerStatuses": [
                {"name": "a", "state": waiting("ImagePullBackOff")},
                {"name": "b", "state": waiting("ContainerCreating")}]},
        }));
        let missing = (
            "hub/agent:1".to_owned(),
            "ImagePullBackOff: not found".to_owned(),
        );
        assert_eq!(missing_images(&pod), [missing]);
        assert!(missing_images(&Pod::default()).is_empty());
    }
}
