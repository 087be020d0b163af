//! Reads the agent's record of enrolled pods: [`restore_pods`] restores pods when no process holds their namespaces,
//! and [`watch_record`] detects, while this proxy drains and the agent is connected to a successor, that a pod or the
//! whole mesh was removed.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use ambit_proxy::report::format_error_chain;
use ambit_sys::{
    netns::Netns,
    procfs::{RejectReason, check_ownership},
};
use ambit_wire::enrolled::{ENROLLED_FILE, EnrolledPod, EnrolledPods};
use tokio::sync::watch;

use crate::pod_handover::RestoredPod;

/// Interval at which a draining proxy reads the record.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum size of the record in bytes; a larger file is not the agent's.
const MAX_RECORD_BYTES: u64 = 16 << 20;

/// Reason why a pod of the record was not restored.
#[derive(Debug, thiserror::Error)]
enum RestorePodError {
    #[error("its network namespace has no name on this node")]
    UnnamedNetns,
    #[error("the name of its network namespace is a path")]
    InvalidNetnsName,
    #[error("cannot open its network namespace")]
    Open(#[source] io::Error),
    #[error("its network namespace has been replaced by another")]
    ReplacedNetns,
    #[error("the namespace is not the pod's")]
    NotOwned(#[source] RejectReason),
}

/// Returns the path of the agent's record of enrolled pods, in the directory of the agent's socket.
pub(crate) fn record_path(agent: &Path) -> PathBuf {
    agent.with_file_name(ENROLLED_FILE)
}

fn read_record(path: &Path) -> io::Result<EnrolledPods> {
    if fs::metadata(path)?.len() > MAX_RECORD_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(EnrolledPods::decode(&fs::read(path)?)?)
}

/// Returns the recorded pods whose namespaces are found in `netns_dir`: the file of the recorded name must be the
/// recorded namespace, which must have one of the pod's addresses. Their sockets have to be opened anew.
pub(crate) fn restore_pods(record: &Path, netns_dir: &Path) -> Vec<RestoredPod> {
    let enrolled = match read_record(record) {
        Ok(enrolled) => enrolled,
        Err(error) => {
            tracing::debug!(record = %record.display(), %error, "no record of enrolled pods");
            return Vec::new();
        }
    };
    let mut found = Vec::new();
    for pod in &enrolled.pods {
        match open_netns(pod, netns_dir) {
            Ok(netns) => found.push(RestoredPod {
                uid: pod.uid.as_str().into(),
                info: pod.info(),
                netns,
                sockets: Vec::new(),
            }),
            Err(error) => tracing::info!(
                pod = %pod.info().pod, uid = pod.uid, error = format_error_chain(&error),
                "waiting for the agent to enrol the pod again"
            ),
        }
    }
    found
}

fn open_netns(pod: &EnrolledPod, netns_dir: &Path) -> Result<Netns, RestorePodError> {
    let named = pod.netns.as_ref().ok_or(RestorePodError::UnnamedNetns)?;
    let file = Path::new(&named.name);
    if file.file_name() != Some(file.as_os_str()) {
        return Err(RestorePodError::InvalidNetnsName);
    }
    let netns = Netns::open(netns_dir.join(file)).map_err(RestorePodError::Open)?;
    if netns.id().ino != named.inode {
        return Err(RestorePodError::ReplacedNetns);
    }
    check_ownership(&netns, &pod.addresses).map_err(RestorePodError::NotOwned)?;
    Ok(netns)
}

/// Polls the agent's record of enrolled pods until the receiver is dropped; the value is `None` until there is a
/// record. An unreadable record changes nothing.
pub(crate) fn watch_record(record: PathBuf) -> watch::Receiver<Option<EnrolledPods>> {
    let (sender, receiver) = watch::channel(None);
    ambit_rt::spawn_essential("record of enrolled pods", async move {
        let mut seen: Option<SystemTime> = None;
        while !sender.is_closed() {
            let written = fs::metadata(&record).and_then(|file| file.modified()).ok();
            if written.is_some() && written != seen {
                match read_record(&record) {
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

    fn record(dir: &Path, enrolled: &EnrolledPods) -> PathBuf {
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
        let enrolled = EnrolledPods {
            removed: false,
            pods,
        };
        let found = restore_pods(&record(dir.path(), &enrolled), dir.path());
        let uids: Vec<_> = found.iter().map(|pod| &*pod.uid).collect();
        assert_eq!(uids, ["good"]);
        assert!(found[0].sockets.is_empty());
    }

    #[test]
    fn missing_or_invalid_record_yields_no_pods() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(ENROLLED_FILE);
        assert!(restore_pods(&path, dir.path()).is_empty());
        fs::write(&path, "{").unwrap();
        assert!(restore_pods(&path, dir.path()).is_empty());
    }
}
