//! Finds kubelet's cgroup on the node.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use ambit_netplan::Cgroup;

/// Finds a cgroup by its path in the node's cgroup v2 hierarchy; `None` if it does not exist. `proc` is the node's
/// procfs.
pub(super) fn find_cgroup(proc: &Path, path: &str) -> Option<Cgroup> {
    let mounted = proc.join("1/root/sys/fs/cgroup");
    // Beside hierarchies of version 1, that of version 2 has a directory of its own.
    let mut roots = [mounted.clone(), mounted.join("unified")].into_iter();
    let root = roots.find(|root| root.join("cgroup.controllers").exists())?;
    let path = Path::new(path.trim_matches('/'));
    let id = fs::metadata(root.join(path)).ok()?.ino();
    let level = u32::try_from(path.components().count()).ok()?;
    Some(Cgroup { level, id })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_of_version_2_has_a_level_and_a_number() {
        for root in ["", "unified"] {
            let proc = tempfile::tempdir().unwrap();
            assert_eq!(find_cgroup(proc.path(), "system.slice"), None);
            let root = proc.path().join("1/root/sys/fs/cgroup").join(root);
            let service = root.join("system.slice/kubelet.service");
            fs::create_dir_all(&service).unwrap();
            // As where there is a tmpfs of hierarchies of version 1.
            assert_eq!(find_cgroup(proc.path(), "system.slice"), None);
            fs::write(root.join("cgroup.controllers"), "").unwrap();
            let id = fs::metadata(&service).unwrap().ino();
            let found = find_cgroup(proc.path(), "/system.slice/kubelet.service/");
            assert_eq!(found, Some(Cgroup { level: 2, id }));
            assert_eq!(find_cgroup(proc.path(), "kubelet.slice"), None);
        }
    }
}
