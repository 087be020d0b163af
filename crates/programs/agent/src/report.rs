//! Reports of the agent and its pods: `GET /v1/status` and `GET /v1/pods/NAMESPACE/NAME`, on the
//! plugin's socket and, for callers on loopback, on the metrics port. JSON, field names in
//! camelCase; readers must ignore unknown fields.

use std::net::IpAddr;

use ambit_model::ArcStr;
use ambit_zds::PodUid;
use serde::Serialize;

use crate::source::Status;

/// Response of `/v1/status`.
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
    /// Node proxies connected.
    pub proxies: i64,
    /// Configured redirection backend; `auto` selects nftables where the kernel supports it.
    pub redirection_backend: String,
    /// Pods that belong to the mesh.
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
    /// State of the enrolment.
    pub state: PodState,
    /// Reason of the state, in words.
    pub why: String,
    /// The last failure, if the last step failed. Absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Inode of the pod's network namespace, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub netns_inode: Option<u64>,
    /// A node proxy has acknowledged that it listens in the namespace.
    pub listeners: bool,
    /// Whether the last comparison found the redirection in the kernel as desired.
    pub redirected: bool,
    /// Number of drifts: changed redirection that was repaired.
    pub drifts: u32,
    /// Unexpected conditions that do not impair the redirection. Absent without any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Desired annotation of the pod.
    pub annotation: Status,
    /// Annotation of the pod as it was last observed.
    pub annotation_seen: Status,
}

/// State of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PodState {
    /// In the mesh, with listeners and redirection in place.
    Captured,
    /// The pod belongs to the mesh, and steps are in flight.
    Enrolling,
    /// The pod belongs to the mesh, and the last step failed; it is retried.
    Failing,
    /// The pod belongs to the mesh, and its network namespace has not been found (yet).
    NoNamespace,
    /// The pod leaves the mesh.
    Leaving,
    /// Outside the mesh.
    Outside,
    /// The pod has ended.
    Ended,
}
