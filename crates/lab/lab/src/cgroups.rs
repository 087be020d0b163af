//! Cgroups of a lab's pods, which capture by BPF programs needs. Other labs create none.
//!
//! They are in the machine's hierarchy of version 2, in a directory of the lab's own beside those of other labs, and go
//! with the lab.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use crate::{Options, layout::Layout};

/// Returns the directory of the lab's cgroups; `None` if its options do not name a backend with BPF programs, or the
/// machine has no hierarchy of version 2. The agents find pods below names like kubelet's.
pub(crate) fn of_lab(layout: &Layout, options: &Options) -> Option<PathBuf> {
    let backend = options.env.get("REDIRECTION_BACKEND")?;
    if !matches!(backend.as_str(), "auto" | "bpf") {
        return None;
    }
    let mut roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].into_iter();
    let root = roots.find(|root| Path::new(root).join("cgroup.controllers").exists())?;
    let number = fs::metadata(layout.root()).ok()?.ino();
    Some(Path::new(root).join(format!("kubepods-ambit-lab-{number}")))
}

/// Creates the cgroup of a pod, unless it exists, and returns its directory.
pub(crate) fn create(lab: &Path, uid: &str) -> io::Result<PathBuf> {
    let pod = lab.join(format!("pod{uid}"));
    fs::create_dir_all(&pod)?;
    Ok(pod)
}

/// Removes the cgroups of a lab whose processes have ended.
pub(crate) fn remove(lab: &Path) {
    for pod in fs::read_dir(lab).into_iter().flatten().flatten() {
        let _no_cgroup = fs::remove_dir(pod.path());
    }
    let _absent = fs::remove_dir(lab);
}
