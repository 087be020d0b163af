//! Calls of the CNI plugin and their responses.

use std::net::IpAddr;

use ambit_model::ArcStr;
use ambit_zds::PodUid;

/// Id of a plugin call that expects a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Pod in the runtime's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WhichPod {
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
    /// Pod that is to be captured.
    pub pod: WhichPod,
    /// Network namespace of the pod.
    pub netns: N,
    /// Addresses from the previous plugins; may be empty.
    pub addresses: Vec<IpAddr>,
}

/// Response to a plugin call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Redirection, listeners and probe exemption are in place.
    Done,
    /// Whether the pod belongs to the mesh.
    Member(bool),
    /// Temporary failure; a retry may succeed.
    TryLater(String),
    /// A step failed.
    Failed(String),
    /// The request is refused.
    Refused(String),
}
