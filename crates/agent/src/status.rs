//! The pods' status, written as manifests that others lay over the pods' own.
//!
//! One file a pod, `<namespace>.<pod>.yaml`, with nothing but the annotation. Names cannot contain
//! what would lead out of the directory: they are Kubernetes names.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::Mutex,
};

use ambit_k8s_api::labels;
use ambit_model::PodName;
use ambit_zds::PodUid;

use crate::enrolment::Status;

/// The value of the annotation for a pod whose capture is in doubt.
const PENDING: &str = "pending";

/// A directory of status manifests.
#[derive(Debug)]
pub struct StatusDir {
    dir: PathBuf,
    /// Whose status the files tell: a pod that is gone must not take that of its successor along.
    owners: Mutex<BTreeMap<(String, String), PodUid>>,
}

/// A status that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write its status to {path}")]
pub struct StatusError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl StatusDir {
    /// Uses `dir`, making it if need be.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, StatusError> {
        let dir = dir.into();
        fs::create_dir_all(&dir).map_err(|source| StatusError {
            path: dir.clone(),
            source,
        })?;
        Ok(Self {
            dir,
            owners: Mutex::default(),
        })
    }

    /// Writes the status of a pod, or removes it. Blocks.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn write(&self, uid: &PodUid, pod: &PodName, status: Status) -> Result<(), StatusError> {
        let path = self.dir.join(file_name(pod));
        let key = (pod.namespace.to_string(), pod.name.to_string());
        let mut owners = self
            .owners
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let value = match status {
            Status::None => {
                if owners.get(&key).is_none_or(|owner| owner == uid) {
                    owners.remove(&key);
                    remove(&path).map_err(|source| StatusError { path, source })?;
                }
                return Ok(());
            }
            Status::Pending => PENDING,
            Status::Enabled => labels::REDIRECTION_ENABLED,
        };
        owners.insert(key, uid.clone());
        let text = manifest(pod, value);
        // Readers look for names that end in .yaml; they never see half a file.
        let temporary = self.dir.join(format!("{}.tmp", file_name(pod)));
        fs::write(&temporary, text)
            .and_then(|()| fs::rename(&temporary, &path))
            .map_err(|source| StatusError { path, source })
    }

    /// Removes the status of every pod but these. Blocks.
    ///
    /// # Errors
    /// When the directory cannot be read or written.
    pub fn prune(&self, keep: &BTreeSet<PodName>) -> Result<(), StatusError> {
        let keep: BTreeSet<_> = keep.iter().map(file_name).collect();
        let failed = |source| StatusError {
            path: self.dir.clone(),
            source,
        };
        for entry in fs::read_dir(&self.dir).map_err(failed)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let ours = name.ends_with(".yaml") || name.ends_with(".yaml.tmp");
            if ours && !keep.contains(&name) {
                remove(&entry.path()).map_err(failed)?;
            }
        }
        Ok(())
    }
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
        let status = StatusDir::open(dir.path().join("made")).unwrap();
        let file = dir.path().join("made/shop.web-0.yaml");
        status
            .write(&"u".into(), &pod("web-0"), Status::Pending)
            .unwrap();
        assert!(
            fs::read_to_string(&file)
                .unwrap()
                .contains("redirection: pending")
        );
        status
            .write(&"u".into(), &pod("web-0"), Status::Enabled)
            .unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!(
            text,
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: \"web-0\"\n  namespace: \"shop\"\n  \
             annotations:\n    ambit.io/overlay: \"true\"\n    \
             ambient.istio.io/redirection: enabled\n"
        );
        status
            .write(&"u".into(), &pod("web-0"), Status::None)
            .unwrap();
        status
            .write(&"u".into(), &pod("web-0"), Status::None)
            .unwrap();
        assert!(!file.exists());
    }

    #[test]
    fn a_pod_does_not_take_its_successors_status_along() {
        let dir = tempfile::tempdir().unwrap();
        let status = StatusDir::open(dir.path()).unwrap();
        status
            .write(&"old".into(), &pod("web-0"), Status::Enabled)
            .unwrap();
        status
            .write(&"new".into(), &pod("web-0"), Status::Enabled)
            .unwrap();
        status
            .write(&"old".into(), &pod("web-0"), Status::None)
            .unwrap();
        assert!(dir.path().join("shop.web-0.yaml").exists());
    }

    #[test]
    fn what_an_agent_before_us_left_is_pruned() {
        let dir = tempfile::tempdir().unwrap();
        let status = StatusDir::open(dir.path()).unwrap();
        for name in [
            "shop.gone.yaml",
            "shop.web-0.yaml",
            "shop.x.yaml.tmp",
            "README",
        ] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        status.prune(&BTreeSet::from([pod("web-0")])).unwrap();
        let mut left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["README", "shop.web-0.yaml"]);
    }
}
