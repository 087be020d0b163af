//! Encodes and decodes a pod as an item of [`ambit_handover`], for the next process: the key is the UID, the first
//! descriptor the network namespace, and the others are sockets.

use std::os::fd::OwnedFd;

use ambit_handover::HandoverItem;
use ambit_sys::netns::Netns;
use ambit_wire::zds_codec::{ZdsDecodeError, decode_request, encode_request};
use ambit_zds::{PodUid, Request, WorkloadInfo};

/// Pod that the previous process served.
#[derive(Debug)]
pub(crate) struct RestoredPod {
    /// UID of the pod in Kubernetes.
    pub(crate) uid: PodUid,
    /// Name and addresses of the pod.
    pub(crate) info: WorkloadInfo,
    /// Network namespace of the pod.
    pub(crate) netns: Netns,
    /// Sockets of the pod, of any kind; empty if the proxy must open new ones.
    pub(crate) sockets: Vec<OwnedFd>,
}

/// Error of decoding an item as a pod.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RestoreError {
    /// The metadata cannot be decoded.
    #[error("cannot decode its description")]
    Metadata(#[from] ZdsDecodeError),
    /// The metadata is of another pod, or of none.
    #[error("its description is of another pod")]
    OtherNetns,
    /// The item has no usable network namespace.
    #[error("it came without a network namespace")]
    Netns(#[source] std::io::Error),
}

/// Encodes the metadata of a pod's item: its enrolment, in the agent's format.
pub(crate) fn encode_metadata(uid: &PodUid, info: &WorkloadInfo) -> Vec<u8> {
    encode_request(&Request::Add {
        uid: uid.clone(),
        info: Some(info.clone()),
    })
}

impl RestoredPod {
    /// Decodes a pod from an item of this key.
    ///
    /// # Errors
    ///
    /// When the item is not a pod.
    pub(crate) fn from_handover_item(
        key: &str,
        item: HandoverItem<OwnedFd>,
    ) -> Result<Self, RestoreError> {
        let Request::Add {
            uid,
            info: Some(info),
        } = decode_request(&item.metadata)?
        else {
            return Err(RestoreError::OtherNetns);
        };
        if *uid != *key {
            return Err(RestoreError::OtherNetns);
        }
        let mut descriptors = item.descriptors.into_iter();
        let netns = descriptors
            .next()
            .ok_or_else(|| std::io::ErrorKind::NotFound.into());
        let netns = netns
            .and_then(Netns::from_fd)
            .map_err(RestoreError::Netns)?;
        Ok(Self {
            uid,
            info,
            netns,
            sockets: descriptors.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use ambit_model::PodName;

    use super::*;

    fn item(uid: &str, descriptors: &[&str]) -> HandoverItem<OwnedFd> {
        let info = WorkloadInfo {
            pod: PodName {
                name: "web".into(),
                namespace: "shop".into(),
                service_account: "web".into(),
            },
            addresses: vec!["10.0.0.1".parse().unwrap()],
        };
        let open = |path: &&str| std::fs::File::open(path).unwrap().into();
        HandoverItem {
            metadata: encode_metadata(&uid.into(), &info).into(),
            descriptors: descriptors.iter().map(open).collect(),
        }
    }

    #[test]
    fn handed_over_pod_round_trips() {
        let pod =
            RestoredPod::from_handover_item("a", item("a", &["/proc/self/ns/net", "/dev/null"]))
                .unwrap();
        assert_eq!((&*pod.uid, &*pod.info.pod.name), ("a", "web"));
        assert_eq!(pod.netns, Netns::current().unwrap());
        assert_eq!(pod.sockets.len(), 1);
    }

    #[test]
    fn items_other_than_pods_are_rejected() {
        let another = RestoredPod::from_handover_item("b", item("a", &["/proc/self/ns/net"]));
        assert!(matches!(another, Err(RestoreError::OtherNetns)));
        let without = RestoredPod::from_handover_item("a", item("a", &[]));
        assert!(matches!(without, Err(RestoreError::Netns(_))));
        let a_file = RestoredPod::from_handover_item("a", item("a", &["/dev/null"]));
        assert!(matches!(a_file, Err(RestoreError::Netns(_))));
    }
}
