//! Source of pods and namespaces, and their attributes that enrolment needs.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    net::IpAddr,
};

use ambit_k8s_api::{
    enablement::{PodFacts, has_sidecar},
    labels,
};
use ambit_model::{ArcStr, PodName};
use ambit_zds::PodUid;
use serde::{Deserialize, Serialize};

mod facts;
pub mod kubernetes;
pub mod manifests;
mod probe_ports;

pub use ambit_k8s_api::enablement::Labels;

/// Pod of this node, with the attributes that enrolment depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodView {
    /// UID of the pod.
    pub uid: PodUid,
    /// Name, namespace, service account.
    #[serde(with = "ambit_mesh_json::PodNameForm")]
    pub name: PodName,
    /// Whether the pod shares the node's network namespace.
    pub host_network: bool,
    /// Whether the pod has ended: phase Succeeded or Failed.
    pub terminal: bool,
    /// Whether the pod is being deleted. Until it has ended it runs on, for its grace period.
    #[serde(default)]
    pub deleting: bool,
    /// Labels of the pod.
    pub labels: Labels,
    /// Annotations of the pod.
    pub annotations: Labels,
    /// Addresses in the pod's status.
    pub addresses: Vec<IpAddr>,
    /// Ports that kubelet probes; `None` in records of agents that did not store them. Then every port counts, so that
    /// no probe fails until the API server sends the pod.
    #[serde(default)]
    pub probe_ports: Option<Vec<u16>>,
    /// Name of the pod's cgroup, if not its UID (static pods).
    pub cgroup_alias: Option<String>,
    /// Capture status in the pod's annotation. Enrolment reads from it only whether the pod was captured once, and
    /// corrects it.
    pub reported: Status,
    /// Whether labels and annotations are certainly those that the pod was created with.
    #[serde(default)]
    pub unchanged: bool,
}

impl<'a> From<&'a PodView> for PodFacts<'a> {
    fn from(pod: &'a PodView) -> Self {
        Self {
            namespace: &pod.name.namespace,
            host_network: pod.host_network,
            labels: &pod.labels,
            has_sidecar: has_sidecar(&pod.annotations),
        }
    }
}

/// State of the previous agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Labels by namespace.
    pub namespaces: BTreeMap<ArcStr, Labels>,
    /// The pods of this node.
    pub pods: BTreeSet<PodUid>,
}

/// Capture status in a pod's annotation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Pod without the annotation.
    #[default]
    None,
    /// Being captured, or its capture is in doubt.
    Pending,
    /// The pod is captured.
    Enabled,
}

impl Status {
    /// The value of the annotation.
    pub fn value(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Pending => Some(labels::REDIRECTION_PENDING),
            Self::Enabled => Some(labels::REDIRECTION_ENABLED),
        }
    }

    /// Parses the annotation's value. An unknown value is treated as one that must be corrected.
    pub fn of(value: Option<&str>) -> Self {
        match value {
            None => Self::None,
            Some(labels::REDIRECTION_ENABLED) => Self::Enabled,
            Some(_) => Self::Pending,
        }
    }
}

/// Event of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceEvent {
    /// New or changed pod of this node.
    Pod(PodView),
    /// Removal of a pod, or its move to another node.
    PodGone(PodUid),
    /// New namespace, or changed labels of one.
    Namespace(ArcStr, Labels),
    /// Deletion of a namespace.
    NamespaceGone(ArcStr),
    /// State recorded by an earlier agent; sent first, if there is any.
    Recorded(Record),
    /// All initial objects have been sent.
    Synced,
}

/// Source of pods and namespaces. The first events describe all existing objects, then [`SourceEvent::Synced`], then
/// every change in order.
pub trait PodSource: Send + 'static {
    /// Waits for events; `None` at the end of the source. Cancellation loses no event.
    fn next(&mut self) -> impl Future<Output = Option<Vec<SourceEvent>>> + Send;

    /// Reason why the sent events may be outdated, if they may. When it changes, [`Self::next`] returns, possibly
    /// without events.
    fn trouble(&self) -> Option<&str> {
        None
    }
}
