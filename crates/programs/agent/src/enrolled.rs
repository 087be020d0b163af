//! Writes the record of enrolled pods that node proxies read, see [`ambit_wire::enrolled`]. The previous agent's file
//! stays until this agent knows every pod.
//!
//! The previous agent's file stays until this agent knows every pod.

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use ambit_rt::{spawn, spawn_blocking};
use ambit_sys::netns::NetnsId;
use ambit_wire::enrolled::{ENROLLED_FILE, EnrolledPod, EnrolledPods, NamedNetns};
use ambit_zds::{PodUid, WorkloadInfo};
use tokio::sync::watch;

use crate::replace::replace_file;

type EnrolledEntries = Arc<BTreeMap<PodUid, EnrolledEntry>>;

#[derive(Clone, Debug)]
enum EnrolledEntry {
    Current(WorkloadInfo, NetnsId),
    /// Pod from the previous agent's record, whose namespace has yet to be found.
    FromEarlierRun(EnrolledPod),
}

/// Desired content of the file of enrolled pods.
#[derive(Clone, Debug, Default)]
struct DesiredContent {
    /// Whether all pods are known, so that the file may be written.
    complete: bool,
    pods: EnrolledEntries,
}

/// File that lists the enrolled pods of the node, for node proxies that start without the agent.
#[derive(Debug)]
pub(crate) struct EnrolledFile {
    desired: watch::Sender<DesiredContent>,
    earlier_pods: Vec<EnrolledPod>,
}

impl EnrolledFile {
    /// Starts the task that writes the file beside the ZDS socket. `netns_dir` is the directory in which the container
    /// runtime binds network namespaces.
    pub(crate) fn start(zds_socket: &Path, netns_dir: PathBuf) -> Self {
        let path = zds_socket.with_file_name(ENROLLED_FILE);
        let before = fs::read(&path).ok();
        let before = before.and_then(|bytes| EnrolledPods::decode(&bytes).ok());
        let (sender, mut desired) = watch::channel(DesiredContent::default());
        spawn("record of enrolled pods", async move {
            // What changes while the file is written is written together.
            while desired.changed().await.is_ok() {
                let now = desired.borrow_and_update().clone();
                if !now.complete {
                    continue;
                }
                let (of, dir) = (path.clone(), netns_dir.clone());
                let written = spawn_blocking("record of enrolled pods", move || {
                    let names = named_netns(&dir);
                    let pods = now.pods.iter().map(|(uid, pod)| match pod {
                        EnrolledEntry::Current(info, netns) => {
                            EnrolledPod::new(uid, info, names.get(netns).cloned())
                        }
                        EnrolledEntry::FromEarlierRun(pod) => pod.clone(),
                    });
                    let enrolled = EnrolledPods {
                        removed: false,
                        pods: pods.collect(),
                    };
                    write_file(&of, &enrolled)
                });
                if let Ok(Err(error)) = written.await {
                    tracing::warn!(
                        path = %path.display(), %error,
                        "cannot record the enrolled pods: a node proxy that starts alone will wait for the agent"
                    );
                }
            }
        });
        Self {
            desired: sender,
            earlier_pods: before.unwrap_or_default().pods,
        }
    }

    /// Adds an enrolled pod, or replaces its entry.
    pub(crate) fn add(&self, uid: PodUid, info: WorkloadInfo, netns: NetnsId) {
        self.desired.send_modify(|desired| {
            Arc::make_mut(&mut desired.pods).insert(uid, EnrolledEntry::Current(info, netns));
        });
    }

    /// Keeps the previous agent's entry for a pod whose network namespace is not known yet.
    pub(crate) fn keep_earlier(&self, uid: &PodUid) {
        let mut before = self.earlier_pods.iter();
        let Some(pod) = before.find(|pod| *pod.uid == **uid) else {
            return;
        };
        self.desired.send_modify(|desired| {
            let pods = Arc::make_mut(&mut desired.pods);
            pods.entry(uid.clone())
                .or_insert_with(|| EnrolledEntry::FromEarlierRun(pod.clone()));
        });
    }

    /// Removes the entry of an unenrolled pod.
    pub(crate) fn remove(&self, uid: &PodUid) {
        self.desired.send_if_modified(|desired| {
            desired.pods.contains_key(uid) && Arc::make_mut(&mut desired.pods).remove(uid).is_some()
        });
    }

    /// Marks all pods as known, so that the file is written from now on.
    pub(crate) fn mark_complete(&self) {
        self.desired.send_modify(|desired| desired.complete = true);
    }
}

/// Records that the mesh is being uninstalled, so that draining node proxies end soon. Blocks.
///
/// # Errors
/// When the file cannot be written.
pub(crate) fn mark_removed(zds_socket: &Path) -> io::Result<()> {
    let removed = EnrolledPods {
        removed: true,
        pods: Vec::new(),
    };
    write_file(&zds_socket.with_file_name(ENROLLED_FILE), &removed)
}

fn write_file(path: &Path, enrolled: &EnrolledPods) -> io::Result<()> {
    replace_file(path, 0o644, &enrolled.encode()?)
}

/// Returns the network namespaces that are bound in a directory; none if the directory does not exist.
fn named_netns(dir: &Path) -> HashMap<NetnsId, NamedNetns> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let file = fs::metadata(entry.path()).ok()?;
        let (dev, inode) = (file.dev(), file.ino());
        Some((NetnsId { dev, ino: inode }, NamedNetns { name, inode }))
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use ambit_sys::netns::Netns;
    use ambit_testkit::wait_until;

    use super::*;

    fn read_file(path: &Path) -> Option<EnrolledPods> {
        EnrolledPods::decode(&fs::read(path).ok()?).ok()
    }

    #[tokio::test]
    async fn the_file_has_every_pod_with_its_namespaces_name_once_all_are_known() {
        let dir = tempfile::tempdir().unwrap();
        let netns_dir = dir.path().join("netns");
        fs::create_dir(&netns_dir).unwrap();
        std::os::unix::fs::symlink("/proc/self/ns/net", netns_dir.join("cni-1")).unwrap();
        let path = dir.path().join(ENROLLED_FILE);
        let of_before = EnrolledPods {
            removed: false,
            pods: vec![EnrolledPod::new(
                &"c".into(),
                &WorkloadInfo::default(),
                None,
            )],
        };
        fs::write(&path, of_before.encode().unwrap()).unwrap();
        let file = EnrolledFile::start(&dir.path().join("zds.sock"), netns_dir);
        let here = Netns::current().unwrap().id();
        file.add("a".into(), WorkloadInfo::default(), here);
        let elsewhere = NetnsId { ino: 1, ..here };
        file.add("b".into(), WorkloadInfo::default(), elsewhere);
        file.keep_earlier(&"c".into());
        tokio::task::yield_now().await;
        assert_eq!(read_file(&path), Some(of_before), "not all are known");
        file.mark_complete();
        wait_until("every pod is recorded", || {
            read_file(&path).is_some_and(|enrolled| enrolled.pods.len() == 3)
        })
        .await;
        let pods = read_file(&path).unwrap().pods;
        let name = pods[0]
            .netns
            .as_ref()
            .map(|netns| (&*netns.name, netns.inode));
        assert_eq!(name, Some(("cni-1", here.ino)));
        assert_eq!(pods[1].netns, None);
        file.remove(&"a".into());
        file.remove(&"c".into());
        wait_until("one pod is left", || {
            read_file(&path).is_some_and(|enrolled| enrolled.pods.len() == 1)
        })
        .await;
        mark_removed(&dir.path().join("zds.sock")).unwrap();
        assert!(read_file(&path).unwrap().removed);
    }
}
