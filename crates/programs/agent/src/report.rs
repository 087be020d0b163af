//! Reports of the agent and its pods: `GET /v1/status` and `GET /v1/pods/NAMESPACE/NAME`, on the
//! plugin's socket and, for callers on loopback, on the metrics port. JSON, field names in
//! camelCase; readers must ignore unknown fields.

use std::net::IpAddr;

use ambit_model::ArcStr;
use ambit_zds::PodUid;
use serde::Serialize;

use crate::source::RedirectionStatus;

/// Response of `/v1/status`: the state of the agent and of all pods.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentReport {
    /// The agent's version.
    pub version: &'static str,
    /// Name of the node.
    pub node: String,
    /// Whether all existing pods are known, so that proxies may connect.
    pub ready: bool,
    /// Reason why the state of pods may be outdated, for instance an unreachable API server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_trouble: Option<String>,
    /// Number of connected node proxies.
    pub proxies: i64,
    /// Configured redirection backend; `auto` selects nftables where the kernel supports it, and so does `bpf` for pods
    /// that BPF programs cannot capture.
    pub redirection_backend: String,
    /// Number of pods that belong to the mesh.
    #[serde(rename = "wanted")]
    pub desired: usize,
    /// Number of captured pods.
    pub captured: usize,
    /// Number of pods whose last step failed.
    pub failing: usize,
    /// Reports on all pods of the node, including those outside the mesh.
    pub pods: Vec<PodReport>,
}

/// Report on one pod; the response of `/v1/pods/NAMESPACE/NAME`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodReport {
    /// Namespace of the pod.
    pub namespace: ArcStr,
    /// Name of the pod.
    pub name: ArcStr,
    /// UID of the pod.
    pub uid: PodUid,
    /// Service account of the pod.
    pub service_account: ArcStr,
    /// Addresses of the pod.
    pub addresses: Vec<IpAddr>,
    /// Whether the pod belongs to the mesh, captured yet or not.
    #[serde(rename = "wanted")]
    pub belongs: bool,
    /// State of the pod's enrolment.
    pub state: PodState,
    /// Reason of the state, as text for operators.
    pub why: String,
    /// Error of the last step, if it failed. Absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Inode of the pod's network namespace, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub netns_inode: Option<u64>,
    /// Whether a node proxy has acknowledged that it listens in the pod's namespace.
    pub listeners: bool,
    /// Whether the last comparison found the redirection in the kernel as desired.
    pub redirected: bool,
    /// Number of times that redirection had changed and was repaired.
    pub drifts: u32,
    /// Method by which the pod is captured: `bpf`, or `rules` of nftables or iptables. Absent while it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub captured_by: Option<&'static str>,
    /// Reason why rules capture the pod although the agent is set to BPF programs. Absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_by_bpf: Option<String>,
    /// Warnings that do not impair the redirection. Absent without any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Desired value of the pod's status annotation.
    pub annotation: RedirectionStatus,
    /// Value of the pod's status annotation as last observed.
    pub annotation_seen: RedirectionStatus,
}

/// State of a pod's enrolment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PodState {
    /// The pod belongs to the mesh, with listeners and redirection in place.
    Captured,
    /// The pod belongs to the mesh, and its enrolment has not finished.
    Enrolling,
    /// The pod belongs to the mesh, and the last step failed; it is retried.
    Failing,
    /// The pod belongs to the mesh, and its network namespace has not been found (yet).
    NoNamespace,
    /// The pod does not belong to the mesh any more, and its unenrolment has not finished.
    Leaving,
    /// The pod does not belong to the mesh.
    Outside,
    /// The pod has ended or was deleted.
    Ended,
}
