//! Messages of ZDS between agent and node proxy. The crate `ambit-wire` encodes them as protobuf.

use std::net::IpAddr;

use ambit_model::{ArcStr, PodName};

/// Kubernetes UID of a pod, in lower case, which identifies the pod in ZDS.
pub type PodUid = ArcStr;

/// Maximum size of a record in bytes. A longer record arrives truncated and ends the connection, so senders truncate
/// contents to fit.
pub const MAX_RECORD_BYTES: usize = 1024;

/// Maximum length of the error text in an [`Ack`], in bytes. Leaves room for the protobuf encoding in a record.
pub const MAX_ACK_TEXT_BYTES: usize = 900;

/// Acknowledgement of a [`Request`]. The error is a text for operators.
pub type Ack = Result<(), String>;

/// Description of a pod in a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct WorkloadInfo {
    /// Name, namespace and service account of the pod.
    pub pod: PodName,
    /// Addresses of the pod (Ambit's own field; empty from other agents).
    pub addresses: Vec<IpAddr>,
}

/// Request of the agent to the node proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Request to serve a pod. Only this request carries a network namespace.
    Add {
        /// UID of the pod.
        uid: PodUid,
        /// Description of the pod; `None` is a protocol error.
        info: Option<WorkloadInfo>,
    },
    /// Request to continue serving a pod whose network namespace the agent does not have. Only in the snapshot.
    Keep {
        /// UID of the pod.
        uid: PodUid,
    },
    /// Request to stop serving a pod.
    Del {
        /// UID of the pod.
        uid: PodUid,
    },
    /// End of the snapshot: the proxy stops serving pods that were not in the snapshot.
    SnapshotSent,
}

impl Request {
    /// Returns the uid of the request's pod.
    pub fn uid(&self) -> Option<&PodUid> {
        match self {
            Self::Add { uid, .. } | Self::Keep { uid } | Self::Del { uid } => Some(uid),
            Self::SnapshotSent => None,
        }
    }
}

/// Truncates `text` to at most `max` bytes, at a character boundary.
pub fn truncate_to_bytes(text: &str, max: usize) -> &str {
    let mut end = max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clipping_never_splits_a_character() {
        assert_eq!(truncate_to_bytes("aé", 2), "a");
        assert_eq!(truncate_to_bytes("aé", 3), "aé");
        assert_eq!(truncate_to_bytes("aé", 99), "aé");
        assert_eq!(truncate_to_bytes("", 0), "");
    }
}
