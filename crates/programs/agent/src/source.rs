//! Interface of the sources of pods and namespaces, and the attributes of pods that enrolment needs.

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
    /// Name, namespace and service account of the pod.
    #[serde(with = "ambit_mesh_json::PodNameForm")]
    pub name: PodName,
    /// Whether the pod shares the node's network namespace.
    pub host_network: bool,
    /// Whether the pod has ended: phase Succeeded or Failed.
    pub terminal: bool,
    /// Whether the pod is being deleted; it still runs until its grace period ends.
    #[serde(default)]
    pub deleting: bool,
    /// Labels of the pod.
    pub labels: Labels,
    /// Annotations of the pod.
    pub annotations: Labels,
    /// Addresses in the pod's status, `podIPs`.
    pub addresses: Vec<IpAddr>,
    /// Ports of the pod that kubelet probes. `None` in records of earlier agents, which did not store them: then every
    /// port counts, so that no probe fails until the API server sends the pod.
    #[serde(default)]
    pub probe_ports: Option<Vec<u16>>,
    /// Name of the pod's cgroup if it is not named by the UID (static pods).
    pub cgroup_alias: Option<String>,
    /// Value of the pod's status annotation. Enrolment derives from it only whether the pod was captured before, and
    /// otherwise corrects it.
    pub reported: RedirectionStatus,
    /// Whether labels and annotations are certainly unchanged since the pod's creation.
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

/// Pods and namespaces as the previous agent last knew them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EarlierObjects {
    /// Labels of each namespace.
    pub namespaces: BTreeMap<ArcStr, Labels>,
    /// UIDs of the pods of this node.
    pub pods: BTreeSet<PodUid>,
}

/// Value of a pod's status annotation, `ambient.istio.io/redirection`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RedirectionStatus {
    /// The pod has no such annotation.
    #[default]
    None,
    /// The pod is being captured, or it is uncertain whether it is captured.
    Pending,
    /// The pod is captured.
    Enabled,
}

impl RedirectionStatus {
    /// Returns the annotation's value; `None` is no annotation.
    pub fn annotation_value(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Pending => Some(labels::REDIRECTION_PENDING),
            Self::Enabled => Some(labels::REDIRECTION_ENABLED),
        }
    }

    /// Parses the annotation's value. An unknown value counts as pending, so that it is corrected.
    pub fn from_annotation(value: Option<&str>) -> Self {
        match value {
            None => Self::None,
            Some(labels::REDIRECTION_ENABLED) => Self::Enabled,
            Some(_) => Self::Pending,
        }
    }
}

/// Event of a source of pods and namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceEvent {
    /// A pod of this node was added or changed.
    Pod(PodView),
    /// A pod was removed, or moved to another node.
    PodGone(PodUid),
    /// A namespace was added, or its labels changed.
    Namespace(ArcStr, Labels),
    /// A namespace was deleted.
    NamespaceGone(ArcStr),
    /// Carries the record of an earlier agent; sent first, if there is one.
    Recorded(EarlierObjects),
    /// All objects that existed at the start have been sent.
    Synced,
}

/// Source of pods and namespaces. The first events describe all existing objects, then [`SourceEvent::Synced`], then
/// every change in order.
pub trait PodSource: Send + 'static {
    /// Waits for further events; `None` at the end of the source. Cancelling the future loses no event.
    fn next(&mut self) -> impl Future<Output = Option<Vec<SourceEvent>>> + Send;

    /// Returns why the events sent so far may be outdated; `None` if they are current. When it changes, [`Self::next`]
    /// returns, possibly without events.
    fn outdated_reason(&self) -> Option<&str> {
        None
    }
}
