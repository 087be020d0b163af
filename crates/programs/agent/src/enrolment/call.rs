//! Calls of the CNI plugin and their responses.

use std::net::IpAddr;

use ambit_model::ArcStr;
use ambit_zds::PodUid;

/// Number of a plugin call, by which its response is matched to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Pod as the container runtime identifies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRef {
    /// Namespace of the pod.
    pub namespace: ArcStr,
    /// Name of the pod.
    pub name: ArcStr,
    /// UID of the pod, if the runtime sent it.
    pub uid: Option<PodUid>,
}

/// Request to enrol a pod that is being started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniAdd<N> {
    /// Pod to enrol.
    pub pod: PodRef,
    /// Network namespace of the pod.
    pub netns: N,
    /// Addresses of the pod that the previous plugins assigned; may be empty.
    pub addresses: Vec<IpAddr>,
}

/// Response to a plugin call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PluginReply {
    /// The pod is captured: redirection, listeners and probe exemption are in place.
    Captured,
    /// Membership query answered: whether the pod belongs to the mesh.
    Member(bool),
    /// The call failed for a temporary reason; a retry may succeed.
    TryLater(String),
    /// A step of the pod's enrolment failed.
    Failed(String),
    /// The call is invalid and would fail again.
    Refused(String),
}
