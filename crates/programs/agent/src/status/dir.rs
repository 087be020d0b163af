//! Writes pods' status to a directory, as manifests that are merged into the pods' own.
//!
//! One file a pod, `<namespace>.<pod>.yaml`, with nothing but the annotation. The agents of several nodes may share a
//! directory, and a pod may come back under its name with another uid or on another node: the first line names the pod
//! and node of the status, and only these are ever removed. Names cannot contain a path out of the directory: they are
//! Kubernetes names.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use ambit_k8s_api::labels;
use ambit_model::PodName;
use ambit_zds::PodUid;

use crate::source::RedirectionStatus;

/// Directory of manifests with the status of pods.
#[derive(Debug)]
pub struct StatusDir {
    dir: PathBuf,
    node: String,
}

/// Error of writing the status of a pod.
#[derive(Debug, thiserror::Error)]
#[error("cannot write its status to {path}")]
pub struct StatusError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl StatusDir {
    /// Opens the directory `dir` for the pods of `node`; creates it if it does not exist.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn open(dir: impl Into<PathBuf>, node: &str) -> Result<Self, StatusError> {
        let dir = dir.into();
        fs::create_dir_all(&dir).map_err(|source| StatusError {
            path: dir.clone(),
            source,
        })?;
        let node = node.to_owned();
        Ok(Self { dir, node })
    }

    /// Writes or removes the status manifest of a pod. Blocks.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn write(
        &self,
        uid: &PodUid,
        pod: &PodName,
        status: RedirectionStatus,
    ) -> Result<(), StatusError> {
        let path = self.dir.join(file_name(pod));
        let header = format!("{}, pod uid {uid}", self.header_line());
        let Some(value) = status.annotation_value() else {
            let removed = if first_line(&path).is_some_and(|line| line == header) {
                remove(&path)
            } else {
                Ok(())
            };
            return removed.map_err(|source| StatusError { path, source });
        };
        // Readers look for names that end in .yaml; they never see half a file.
        let temporary = self.dir.join(format!("{}.{uid}.tmp", file_name(pod)));
        fs::write(&temporary, format!("{header}\n{}", manifest(pod, value)))
            .and_then(|()| fs::rename(&temporary, &path))
            .map_err(|source| StatusError { path, source })
    }

    /// Removes the status manifests of all pods of this node, except for the pods in `keep`. Blocks.
    ///
    /// # Errors
    /// When the directory cannot be read or written.
    pub fn prune(&self, keep: &BTreeSet<PodName>) -> Result<(), StatusError> {
        let keep: BTreeSet<_> = keep.iter().map(file_name).collect();
        let failed = |source| StatusError {
            path: self.dir.clone(),
            source,
        };
        let ours = format!("{}, ", self.header_line());
        for entry in fs::read_dir(&self.dir).map_err(failed)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !keep.contains(&name)
                && first_line(&entry.path()).is_some_and(|line| line.starts_with(&ours))
            {
                remove(&entry.path()).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn header_line(&self) -> String {
        format!("# Written by ambit-agent on node {}", self.node)
    }
}

fn first_line(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().next().map(str::to_owned)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn file_name(pod: &PodName) -> String {
    format!("{}.{}.yaml", pod.namespace, pod.name)
}

fn manifest(pod: &PodName, value: &str) -> String {
    let PodName {
        namespace, name, ..
    } = pod;
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name:?}\n  namespace: {namespace:?}\n  \
         annotations:\n    {}: \"true\"\n    {}: {value}\n",
        labels::OVERLAY,
        labels::REDIRECTION,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> PodName {
        PodName {
            name: name.into(),
            namespace: "shop".into(),
            service_account: "x".into(),
        }
    }

    #[test]
    fn a_status_is_written_replaced_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let status = StatusDir::open(dir.path().join("made"), "n1").unwrap();
        let file = dir.path().join("made/shop.web-0.yaml");
        let write = |value| status.write(&"u".into(), &pod("web-0"), value).unwrap();
        write(RedirectionStatus::Pending);
        assert!(
            fs::read_to_string(&file)
                .unwrap()
                .contains("redirection: pending")
        );
        write(RedirectionStatus::Enabled);
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!(
            text,
            "# Written by ambit-agent on node n1, pod uid u\n\
             apiVersion: v1\nkind: Pod\nmetadata:\n  name: \"web-0\"\n  namespace: \"shop\"\n  \
             annotations:\n    ambit.io/overlay: \"true\"\n    \
             ambient.istio.io/redirection: enabled\n"
        );
        write(RedirectionStatus::None);
        write(RedirectionStatus::None);
        assert_eq!(fs::read_dir(dir.path().join("made")).unwrap().count(), 0);
    }

    #[test]
    fn removal_of_a_pod_keeps_its_successors_status() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("shop.web-0.yaml");
        let here = StatusDir::open(dir.path(), "n1").unwrap();
        let there = StatusDir::open(dir.path(), "n2").unwrap();
        here.write(&"old".into(), &pod("web-0"), RedirectionStatus::Enabled)
            .unwrap();
        here.write(&"new".into(), &pod("web-0"), RedirectionStatus::Enabled)
            .unwrap();
        here.write(&"old".into(), &pod("web-0"), RedirectionStatus::None)
            .unwrap();
        assert!(file.exists());
        there
            .write(&"moved".into(), &pod("web-0"), RedirectionStatus::Enabled)
            .unwrap();
        here.write(&"new".into(), &pod("web-0"), RedirectionStatus::None)
            .unwrap();
        assert!(file.exists());
    }

    #[test]
    fn only_statuses_of_an_earlier_agent_are_pruned() {
        let dir = tempfile::tempdir().unwrap();
        let here = StatusDir::open(dir.path(), "n1").unwrap();
        let there = StatusDir::open(dir.path(), "n11").unwrap();
        for name in ["gone", "web-0"] {
            here.write(&"u".into(), &pod(name), RedirectionStatus::Enabled)
                .unwrap();
        }
        there
            .write(&"u".into(), &pod("other"), RedirectionStatus::Enabled)
            .unwrap();
        fs::write(dir.path().join("mine.yaml"), "kind: Pod").unwrap();
        here.prune(&BTreeSet::from([pod("web-0")])).unwrap();
        let mut left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["mine.yaml", "shop.other.yaml", "shop.web-0.yaml"]);
    }
}
