//! Reads the agent's record of enrolled pods: [`regain`] restores pods when no process holds their namespaces, and
//! [`follow`] detects, while this proxy drains and the agent is connected to a successor, that a pod or the whole mesh
//! was removed.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use ambit_proxy::report::chain;
use ambit_sys::{
    netns::Netns,
    procfs::{RejectReason, owns},
};
use ambit_wire::enrolled::{ENROLLED_FILE, Enrolled, EnrolledPod};
use tokio::sync::watch;

use crate::pod_handover::RestoredPod;

/// Interval at which a draining proxy reads the record.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum size of the record in bytes; a larger file is not the agent's.
const MAX_RECORD_BYTES: u64 = 16 << 20;

/// Reason why a pod of the record was not restored.
#[derive(Debug, thiserror::Error)]
enum RegainError {
    #[error("its network namespace has no name on this node")]
    Unnamed,
    #[error("the name of its network namespace is a path")]
    Path,
    #[error("cannot open its network namespace")]
    Open(#[source] io::Error),
    #[error("its network namespace has been replaced by another")]
    Another,
    #[error("the namespace is not the pod's")]
    NotOwned(#[source] RejectReason),
}

/// Returns the path of the record, in the directory of the agent's socket.
pub(crate) fn path(agent: &Path) -> PathBuf {
    agent.with_file_name(ENROLLED_FILE)
}

fn read(path: &Path) -> io::Result<Enrolled> {
    if fs::metadata(path)?.len() > MAX_RECORD_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(Enrolled::decode(&fs::read(path)?)?)
}

/// Returns the recorded pods whose namespaces are found in `netns_dir`: the file of the recorded name must be the
/// recorded namespace, which must have one of the pod's addresses. Their sockets have to be opened anew.
pub(crate) fn regain(record: &Path, netns_dir: &Path) -> Vec<RestoredPod> {
    let enrolled = match read(record) {
        Ok(enrolled) => enrolled,
        Err(error) => {
            tracing::debug!(record = %record.display(), %error, "no record of enrolled pods");
            return Vec::new();
        }
    };
    let mut found = Vec::new();
    for pod in &enrolled.pods {
        match find(pod, netns_dir) {
            Ok(netns) => found.push(RestoredPod {
                uid: pod.uid.as_str().into(),
                info: pod.info(),
                netns,
                sockets: Vec::new(),
            }),
            Err(error) => tracing::info!(
                pod = %pod.info().pod, uid = pod.uid, error = chain(&error),
                "waiting for the agent to enrol the pod again"
            ),
        }
    }
    found
}

fn find(pod: &EnrolledPod, netns_dir: &Path) -> Result<Netns, RegainError> {
    let named = pod.netns.as_ref().ok_or(RegainError::Unnamed)?;
    let file = Path::new(&named.name);
    if file.file_name() != Some(file.as_os_str()) {
        return Err(RegainError::Path);
    }
    let netns = Netns::open(netns_dir.join(file)).map_err(RegainError::Open)?;
    if netns.id().ino != named.inode {
        return Err(RegainError::Another);
    }
    owns(&netns, &pod.addresses).map_err(RegainError::NotOwned)?;
    Ok(netns)
}

/// Polls the record until the receiver is dropped; the value is `None` until there is a record. An unreadable record
/// changes nothing.
pub(crate) fn follow(record: PathBuf) -> watch::Receiver<Option<Enrolled>> {
    let (sender, receiver) = watch::channel(None);
    ambit_rt::spawn_essential("record of enrolled pods", async move {
        let mut seen: Option<SystemTime> = None;
        while !sender.is_closed() {
            let written = fs::metadata(&record).and_then(|file| file.modified()).ok();
            if written.is_some() && written != seen {
                match read(&record) {
                    Ok(enrolled) => {
                        seen = written;
                        sender.send_replace(Some(enrolled));
                    }
                    Err(error) => {
                        tracing::debug!(record = %record.display(), %error, "cannot read the record");
                    }
                }
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use ambit_wire::enrolled::NamedNetns;
    use ambit_zds::WorkloadInfo;

    use super::*;

    fn pod(uid: &str, name: &str, inode: u64, address: &str) -> EnrolledPod {
        let info = WorkloadInfo {
            addresses: vec![address.parse().unwrap()],
            ..WorkloadInfo::default()
        };
        let netns = NamedNetns {
            name: name.to_owned(),
            inode,
        };
        EnrolledPod::new(&uid.into(), &info, Some(netns))
    }

    fn record(dir: &Path, enrolled: &Enrolled) -> PathBuf {
        let path = dir.join(ENROLLED_FILE);
        fs::write(&path, enrolled.encode().unwrap()).unwrap();
        path
    }

    #[test]
    fn only_the_recorded_namespace_is_used_for_a_pod() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/proc/self/ns/net", dir.path().join("cni-1")).unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let here = Netns::current().unwrap().id().ino;
        let mut unnamed = pod("unnamed", "cni-1", here, "127.0.0.1");
        unnamed.netns = None;
        let pods = vec![
            pod("good", "cni-1", here, "127.0.0.1"),
            pod("replaced", "cni-1", here + 1, "127.0.0.1"),
            pod("foreign address", "cni-1", here, "192.0.2.1"),
            pod("gone", "cni-2", here, "127.0.0.1"),
            pod("no namespace", "file", here, "127.0.0.1"),
            pod("a path", "../proc/self/ns/net", here, "127.0.0.1"),
            unnamed,
        ];
        let enrolled = Enrolled {
            removed: false,
            pods,
        };
        let found = regain(&record(dir.path(), &enrolled), dir.path());
        let uids: Vec<_> = found.iter().map(|pod| &*pod.uid).collect();
        assert_eq!(uids, ["good"]);
        assert!(found[0].sockets.is_empty());
    }

    #[test]
    fn missing_or_invalid_record_yields_no_pods() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(ENROLLED_FILE);
        assert!(regain(&path, dir.path()).is_empty());
        fs::write(&path, "{").unwrap();
        assert!(regain(&path, dir.path()).is_empty());
    }
}
