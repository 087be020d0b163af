//! File of the pods that the agent has enrolled, next to its socket. A node proxy that starts without the pods' network
//! namespaces finds them by this file without waiting for the agent. A draining node proxy reads from it which pods
//! have left the mesh. ZDS takes precedence over the file.

use std::net::IpAddr;

use ambit_model::PodName;
use ambit_zds::{PodUid, WorkloadInfo};
use serde::{Deserialize, Serialize};

/// Name of the file in the directory of the agent's socket.
pub const ENROLLED_FILE: &str = "ambit-pods.json";

/// Contents of the file of enrolled pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EnrolledPods {
    /// Whether the mesh is being uninstalled from the node.
    #[serde(default)]
    pub removed: bool,
    /// Every enrolled pod of the node.
    pub pods: Vec<EnrolledPod>,
}

/// Entry of one enrolled pod in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EnrolledPod {
    /// Kubernetes UID of the pod.
    pub uid: String,
    /// Name of the pod.
    pub name: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Service account of the pod.
    pub service_account: String,
    /// Addresses of the pod.
    pub addresses: Vec<IpAddr>,
    /// Network namespace of the pod, if the container runtime has bound it to a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<NamedNetns>,
}

/// Network namespace that is bound to a file in the node's directory of network namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NamedNetns {
    /// Name of the file. Container runtimes choose a random name for each pod.
    pub name: String,
    /// Inode number of the network namespace.
    pub inode: u64,
}

impl EnrolledPod {
    /// Creates the entry of a pod.
    pub fn new(uid: &PodUid, info: &WorkloadInfo, netns: Option<NamedNetns>) -> Self {
        Self {
            uid: uid.to_string(),
            name: info.pod.name.to_string(),
            namespace: info.pod.namespace.to_string(),
            service_account: info.pod.service_account.to_string(),
            addresses: info.addresses.clone(),
            netns,
        }
    }

    /// Returns the description of the pod, as a ZDS request contains it.
    pub fn info(&self) -> WorkloadInfo {
        WorkloadInfo {
            pod: PodName {
                name: self.name.as_str().into(),
                namespace: self.namespace.as_str().into(),
                service_account: self.service_account.as_str().into(),
            },
            addresses: self.addresses.clone(),
        }
    }
}

impl EnrolledPods {
    /// Encodes the contents of the file as JSON.
    ///
    /// # Errors
    ///
    /// When the contents cannot be written as JSON.
    pub fn encode(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(self)
    }

    /// Decodes the contents of the file.
    ///
    /// # Errors
    ///
    /// When the bytes are not JSON of this form.
    pub fn decode(bytes: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_reads_as_it_was_written() {
        let uid = "1f0a".into();
        let info = WorkloadInfo {
            pod: PodName {
                name: "web-0".into(),
                namespace: "shop".into(),
                service_account: "web".into(),
            },
            addresses: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
        };
        let netns = NamedNetns {
            name: "cni-8d1c".to_owned(),
            inode: 4_026_532_200,
        };
        let pod = EnrolledPod::new(&uid, &info, Some(netns));
        assert_eq!(pod.info(), info);
        let enrolled = EnrolledPods {
            removed: true,
            pods: vec![pod],
        };
        let bytes = enrolled.encode().unwrap();
        assert_eq!(EnrolledPods::decode(&bytes).unwrap(), enrolled);
        let least = br#"{"pods":[]}"#;
        assert_eq!(
            EnrolledPods::decode(least).unwrap(),
            EnrolledPods::default()
        );
        assert!(EnrolledPods::decode(b"{").is_err());
    }
}
