//! What a supervisor holds for its worker, and the records in which the two, and an old and a new
//! supervisor, tell each other of it. Knows nothing of sockets: `F` stands for a descriptor.
//!
//! A pod is told as one [`Record::Pod`] with its network namespace, followed by one
//! [`Record::Socket`] for each of its sockets; it counts once all have come. Nothing secret is ever
//! among them, but in one of the files that a worker keeps for the next: those go to the standby of the
//! same pod, and to no successor. A record of a kind that the reader does not know is passed over, so
//! that versions may differ.

use std::collections::BTreeMap;

use ambit_model::ArcStr;
use ambit_wire::zds_codec::{ZdsDecodeError, decode_request, encode_request};
use ambit_zds::{MAX_RECORD, PodUid, Request, WorkloadInfo};

/// More pods than any node has: what a broken peer may make us hold.
const MAX_PODS: usize = 8192;

/// The longest record.
pub const MAX_HELD_RECORD: usize = MAX_RECORD + 8;

/// What one side tells the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A pod, with its namespace's descriptor; this many sockets follow. Replaces an earlier one.
    Pod {
        /// The pod.
        uid: PodUid,
        /// Who it is.
        info: WorkloadInfo,
        /// How many.
        sockets: u16,
    },
    /// The next socket of the pod told last.
    Socket,
    /// More is known of a pod.
    Known {
        /// The pod.
        uid: PodUid,
        /// Who it is.
        info: WorkloadInfo,
    },
    /// The pod is no longer served.
    Release {
        /// The pod.
        uid: PodUid,
    },
    /// Whether the worker may take connections. The first one also says that every pod has been told.
    Accept(Accept),
    /// The worker has read its configuration and runs.
    Started,
    /// The sender takes the connections of all pods it was told of.
    Accepting,
    /// A file that a worker keeps for the next one, with its descriptor. Replaces an earlier one.
    File(Kind),
}

/// What a worker keeps for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// What the control plane told.
    Mesh,
    /// Certificates with their keys.
    Certificates,
}

/// Whether a worker takes connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accept {
    /// At once.
    Now,
    /// As soon as it can serve them: until then the predecessor does.
    WhenReady,
    /// Not: the successor does.
    Paused,
}

/// A record that is none, or at the wrong place.
#[derive(Debug, thiserror::Error)]
pub enum HeldError {
    /// Its first byte promises more.
    #[error("the record is cut short")]
    Short,
    /// The pod in it.
    #[error(transparent)]
    Pod(#[from] ZdsDecodeError),
    /// It carries the wrong message, or without what belongs to it.
    #[error("the record says nothing of a pod")]
    NoPod,
    /// A descriptor is missing, or came uncalled.
    #[error("a record came with a descriptor too many or too few")]
    Descriptor,
    /// A socket that belongs to no pod.
    #[error("a socket came that belongs to no pod")]
    Stray,
    /// Too much.
    #[error("more than {MAX_PODS} pods")]
    TooMany,
}

impl Record {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let pod = |uid: &PodUid, info: &WorkloadInfo| {
            encode_request(&Request::Add {
                uid: uid.clone(),
                info: Some(info.clone()),
            })
        };
        let tagged = |tag: u8, rest: &[u8]| [&[tag], rest].concat();
        match self {
            Self::Pod { uid, info, sockets } => tagged(
                b'P',
                &[&sockets.to_be_bytes(), &pod(uid, info)[..]].concat(),
            ),
            Self::Socket => vec![b'S'],
            Self::Known { uid, info } => tagged(b'K', &pod(uid, info)),
            Self::Release { uid } => {
                tagged(b'R', &encode_request(&Request::Del { uid: uid.clone() }))
            }
            Self::Accept(Accept::Now) => vec![b'A', b'n'],
            Self::Accept(Accept::WhenReady) => vec![b'A', b'r'],
            Self::Accept(Accept::Paused) => vec![b'A', b'p'],
            Self::Started => vec![b'B'],
            Self::Accepting => vec![b'C'],
            Self::File(Kind::Mesh) => vec![b'F', b'm'],
            Self::File(Kind::Certificates) => vec![b'F', b'c'],
        }
    }

    /// Reads the bytes; `None` for a kind of a later version.
    ///
    /// # Errors
    /// When they are no record.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, HeldError> {
        let (tag, rest) = bytes.split_first().ok_or(HeldError::Short)?;
        let pod = |bytes: &[u8]| match decode_request(bytes)? {
            Request::Add {
                uid,
                info: Some(info),
            } => Ok((uid, info)),
            _ => Err(HeldError::NoPod),
        };
        Ok(Some(match tag {
            b'P' => {
                let (sockets, rest) = rest.split_first_chunk().ok_or(HeldError::Short)?;
                let (uid, info) = pod(rest)?;
                Self::Pod {
                    uid,
                    info,
                    sockets: u16::from_be_bytes(*sockets),
                }
            }
            b'S' => Self::Socket,
            b'K' => {
                let (uid, info) = pod(rest)?;
                Self::Known { uid, info }
            }
            b'R' => match decode_request(rest)? {
                Request::Del { uid } => Self::Release { uid },
                _ => return Err(HeldError::NoPod),
            },
            b'A' => match rest.first().ok_or(HeldError::Short)? {
                b'n' => Self::Accept(Accept::Now),
                b'r' => Self::Accept(Accept::WhenReady),
                b'p' => Self::Accept(Accept::Paused),
                _ => return Ok(None),
            },
            b'B' => Self::Started,
            b'C' => Self::Accepting,
            b'F' => match rest.first().ok_or(HeldError::Short)? {
                b'm' => Self::File(Kind::Mesh),
                b'c' => Self::File(Kind::Certificates),
                _ => return Ok(None),
            },
            _ => return Ok(None),
        }))
    }
}

/// One pod's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldPod<F> {
    /// Who it is.
    pub info: WorkloadInfo,
    /// Its network namespace.
    pub netns: F,
    /// Its sockets, of whatever kind.
    pub sockets: Vec<F>,
}

/// The pods held, and the files.
#[derive(Debug)]
pub struct Held<F> {
    pods: BTreeMap<PodUid, HeldPod<F>>,
    coming: Option<Coming<F>>,
    files: BTreeMap<Kind, F>,
}

/// A pod some of whose sockets are still to come.
#[derive(Debug)]
struct Coming<F> {
    uid: PodUid,
    pod: HeldPod<F>,
    missing: u16,
}

impl<F> Default for Held<F> {
    fn default() -> Self {
        Self {
            pods: BTreeMap::new(),
            coming: None,
            files: BTreeMap::new(),
        }
    }
}

impl<F> Held<F> {
    /// Takes a record and the descriptor that came with it. Records that are not about pods change
    /// nothing. Gives the pod that is whole with it.
    ///
    /// # Errors
    /// When it does not fit; what was held before stays.
    pub fn apply(&mut self, record: &Record, fd: Option<F>) -> Result<Option<PodUid>, HeldError> {
        match (record, fd) {
            (Record::Pod { uid, info, sockets }, Some(netns)) => {
                if self.pods.len() >= MAX_PODS {
                    return Err(HeldError::TooMany);
                }
                let pod = HeldPod {
                    info: info.clone(),
                    netns,
                    sockets: Vec::new(),
                };
                self.coming = Some(Coming {
                    uid: uid.clone(),
                    pod,
                    missing: *sockets,
                });
                Ok(self.complete())
            }
            (Record::Socket, Some(socket)) => {
                let coming = self.coming.as_mut().ok_or(HeldError::Stray)?;
                coming.pod.sockets.push(socket);
                coming.missing = coming.missing.saturating_sub(1);
                Ok(self.complete())
            }
            (Record::File(kind), Some(file)) => {
                self.files.insert(*kind, file);
                Ok(None)
            }
            (Record::Pod { .. } | Record::Socket | Record::File(_), None) | (_, Some(_)) => {
                Err(HeldError::Descriptor)
            }
            (Record::Known { uid, info }, None) => {
                if let Some(pod) = self.pods.get_mut(uid) {
                    pod.info = info.clone();
                }
                Ok(None)
            }
            (Record::Release { uid }, None) => {
                self.pods.remove(uid);
                Ok(None)
            }
            (Record::Accept(_) | Record::Started | Record::Accepting, None) => Ok(None),
        }
    }

    fn complete(&mut self) -> Option<PodUid> {
        let Coming { uid, pod, .. } = self.coming.take_if(|coming| coming.missing == 0)?;
        self.pods.insert(uid.clone(), pod);
        Some(uid)
    }

    /// Whoever told of pods is gone: what it had not told whole is let go.
    pub fn interrupted(&mut self) {
        self.coming = None;
    }

    /// Takes a file out.
    pub fn take_file(&mut self, kind: Kind) -> Option<F> {
        self.files.remove(&kind)
    }

    /// Lets the files go.
    pub fn forget_files(&mut self) {
        self.files.clear();
    }

    /// Lets everything go.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// How many pods are held.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// The pods, to be served.
    pub fn into_pods(self) -> impl Iterator<Item = (ArcStr, HeldPod<F>)> {
        self.pods.into_iter()
    }
}

impl<F: Clone> Held<F> {
    /// The files, as records that make another hold the same.
    fn files(&self) -> impl Iterator<Item = (Record, Option<F>)> {
        let files = self.files.iter();
        files.map(|(kind, file)| (Record::File(*kind), Some(file.clone())))
    }

    /// All pods and the files, as such records.
    pub fn everything(&self) -> impl Iterator<Item = (Record, Option<F>)> {
        self.records().into_iter().chain(self.files())
    }

    /// All pods, as records that make another hold the same.
    pub fn records(&self) -> Vec<(Record, Option<F>)> {
        let pods = self.pods.iter();
        pods.flat_map(|(uid, pod)| pod.records(uid)).collect()
    }

    /// One pod, as such records; none if it is not held.
    pub fn records_of(&self, uid: &PodUid) -> Vec<(Record, Option<F>)> {
        let pod = self.pods.get(uid);
        pod.into_iter().flat_map(|pod| pod.records(uid)).collect()
    }
}

impl<F: Clone> HeldPod<F> {
    fn records(&self, uid: &PodUid) -> impl Iterator<Item = (Record, Option<F>)> {
        let head = Record::Pod {
            uid: uid.clone(),
            info: self.info.clone(),
            sockets: u16::try_from(self.sockets.len()).unwrap_or(u16::MAX),
        };
        let sockets = self.sockets.iter().take(usize::from(u16::MAX));
        let sockets = sockets.map(|socket| (Record::Socket, Some(socket.clone())));
        std::iter::once((head, Some(self.netns.clone()))).chain(sockets)
    }
}

#[cfg(test)]
mod tests {
    use ambit_model::PodName;

    use super::*;

    fn info(name: &str) -> WorkloadInfo {
        WorkloadInfo {
            pod: PodName {
                name: name.into(),
                namespace: "shop".into(),
                service_account: "web".into(),
            },
            addresses: vec!["10.0.0.1".parse().unwrap()],
        }
    }

    fn pod(uid: &str, sockets: u16) -> Record {
        Record::Pod {
            uid: uid.into(),
            info: info(uid),
            sockets,
        }
    }

    #[test]
    fn every_record_reads_as_it_was_written() {
        let records = [
            pod("a", 6),
            Record::Socket,
            Record::Known {
                uid: "a".into(),
                info: info("b"),
            },
            Record::Release { uid: "a".into() },
            Record::Accept(Accept::Now),
            Record::Accept(Accept::WhenReady),
            Record::Accept(Accept::Paused),
            Record::Started,
            Record::Accepting,
            Record::File(Kind::Mesh),
            Record::File(Kind::Certificates),
        ];
        for record in records {
            let bytes = record.encode();
            assert!(bytes.len() <= MAX_HELD_RECORD);
            assert_eq!(Record::decode(&bytes).unwrap(), Some(record.clone()));
            for end in 0..bytes.len() {
                // Cut records are errors or other records, never a panic.
                let _any = Record::decode(&bytes[..end]);
            }
        }
        assert_eq!(Record::decode(b"?later").unwrap(), None);
        assert!(matches!(Record::decode(b""), Err(HeldError::Short)));
        let not_an_add = [b"K", &encode_request(&Request::SnapshotSent)[..]].concat();
        assert!(matches!(Record::decode(&not_an_add), Err(HeldError::NoPod)));
    }

    #[test]
    fn a_pod_counts_once_all_its_sockets_have_come() {
        let mut held = Held::default();
        held.apply(&pod("a", 2), Some(1)).unwrap();
        held.apply(&Record::Socket, Some(2)).unwrap();
        assert!(held.is_empty());
        held.apply(&Record::Socket, Some(3)).unwrap();
        assert_eq!(held.len(), 1);
        held.apply(&pod("b", 0), Some(4)).unwrap();
        let mut copy = Held::default();
        for (record, fd) in held.records() {
            copy.apply(&record, fd).unwrap();
        }
        let pods: Vec<_> = copy.into_pods().collect();
        assert_eq!(pods, held.into_pods().collect::<Vec<_>>());
        assert_eq!(pods[0].1.sockets, [2, 3]);
    }

    #[test]
    fn a_pod_told_in_part_is_let_go_and_the_one_before_it_stays() {
        let mut held = Held::default();
        held.apply(&pod("a", 1), Some(1)).unwrap();
        held.apply(&Record::Socket, Some(2)).unwrap();
        held.apply(&pod("a", 2), Some(3)).unwrap();
        held.apply(&Record::Socket, Some(4)).unwrap();
        held.interrupted();
        assert!(matches!(
            held.apply(&Record::Socket, Some(5)),
            Err(HeldError::Stray)
        ));
        let pods: Vec<_> = held.into_pods().collect();
        assert_eq!((pods[0].1.netns, &pods[0].1.sockets[..]), (1, &[2][..]));
    }

    #[test]
    fn what_is_known_changes_and_what_is_released_goes() {
        let mut held = Held::default();
        held.apply(&pod("a", 0), Some(1)).unwrap();
        let known = Record::Known {
            uid: "a".into(),
            info: info("renamed"),
        };
        held.apply(&known, None).unwrap();
        assert_eq!(held.pods["a"].info, info("renamed"));
        held.apply(&Record::Release { uid: "a".into() }, None)
            .unwrap();
        held.apply(&known, None).unwrap();
        assert!(held.is_empty());
    }

    #[test]
    fn descriptors_come_exactly_with_what_they_belong_to() {
        let mut held = Held::default();
        for (record, fd) in [
            (pod("a", 0), None),
            (Record::Socket, None),
            (Record::Started, Some(1)),
            (Record::Release { uid: "a".into() }, Some(1)),
        ] {
            assert!(matches!(
                held.apply(&record, fd),
                Err(HeldError::Descriptor)
            ));
        }
    }
}
