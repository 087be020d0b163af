//! What a proxy has its supervisor hold, as items of [`ambit_handover`]: a pod each, by its uid, whose first
//! descriptor is its network namespace and the others its sockets; and two files.

use std::os::fd::OwnedFd;

use ambit_handover::HeldItem;
use ambit_sys::netns::Netns;
use ambit_wire::zds_codec::{ZdsDecodeError, decode_request, encode_request};
use ambit_zds::{PodUid, Request, WorkloadInfo};

/// What a worker keeps for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What the control plane told.
    Mesh,
    /// Certificates with their keys.
    Certificates,
}

impl Kind {
    /// Its number among files.
    pub fn number(self) -> u8 {
        match self {
            Self::Mesh => 0,
            Self::Certificates => 1,
        }
    }
}

/// A pod that was served before this process.
#[derive(Debug)]
pub struct HeldPod {
    /// Kubernetes' uid.
    pub uid: PodUid,
    /// Who it is.
    pub info: WorkloadInfo,
    /// Its network namespace.
    pub netns: Netns,
    /// Its sockets, of whatever kind; none where they are to be opened anew.
    pub sockets: Vec<OwnedFd>,
}

/// An item that is no pod.
#[derive(Debug, thiserror::Error)]
pub enum HeldPodError {
    /// What is said about it cannot be read.
    #[error("cannot read what is said about it")]
    About(#[from] ZdsDecodeError),
    /// It is about another pod, or none.
    #[error("what is said about it is about something else")]
    Another,
    /// Its namespace is missing.
    #[error("it came without a network namespace")]
    Netns(#[source] std::io::Error),
}

/// What is said about a pod: its enrolment, as the agent sends it.
pub fn about(uid: &PodUid, info: &WorkloadInfo) -> Vec<u8> {
    encode_request(&Request::Add {
        uid: uid.clone(),
        info: Some(info.clone()),
    })
}

impl HeldPod {
    /// Reads an item.
    ///
    /// # Errors
    /// When it is no pod.
    pub fn read(key: &str, item: HeldItem<OwnedFd>) -> Result<Self, HeldPodError> {
        let Request::Add {
            uid,
            info: Some(info),
        } = decode_request(&item.about)?
        else {
            return Err(HeldPodError::Another);
        };
        if *uid != *key {
            return Err(HeldPodError::Another);
        }
        let mut descriptors = item.descriptors.into_iter();
        let netns = descriptors
            .next()
            .ok_or_else(|| std::io::ErrorKind::NotFound.into());
        let netns = netns
            .and_then(Netns::from_fd)
            .map_err(HeldPodError::Netns)?;
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

    fn item(uid: &str, descriptors: &[&str]) -> HeldItem<OwnedFd> {
        let info = WorkloadInfo {
            pod: PodName {
                name: "web".into(),
                namespace: "shop".into(),
                service_account: "web".into(),
            },
            addresses: vec!["10.0.0.1".parse().unwrap()],
        };
        let open = |path: &&str| std::fs::File::open(path).unwrap().into();
        HeldItem {
            about: about(&uid.into(), &info).into(),
            descriptors: descriptors.iter().map(open).collect(),
        }
    }

    #[test]
    fn a_pod_is_read_as_it_was_written() {
        let pod = HeldPod::read("a", item("a", &["/proc/self/ns/net", "/dev/null"])).unwrap();
        assert_eq!((&*pod.uid, &*pod.info.pod.name), ("a", "web"));
        assert_eq!(pod.netns, Netns::current().unwrap());
        assert_eq!(pod.sockets.len(), 1);
    }

    #[test]
    fn what_is_no_pod_is_refused() {
        let another = HeldPod::read("b", item("a", &["/proc/self/ns/net"]));
        assert!(matches!(another, Err(HeldPodError::Another)));
        let without = HeldPod::read("a", item("a", &[]));
        assert!(matches!(without, Err(HeldPodError::Netns(_))));
        let a_file = HeldPod::read("a", item("a", &["/dev/null"]));
        assert!(matches!(a_file, Err(HeldPodError::Netns(_))));
    }
}
