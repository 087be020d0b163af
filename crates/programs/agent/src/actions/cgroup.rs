//! Finds kubelet's cgroup and those of pods in the node's cgroup v2 hierarchy.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use ambit_netplan::Cgroup;

/// Finds a cgroup by its path in the node's cgroup v2 hierarchy; `None` if it does not exist. `proc` is the node's
/// procfs.
pub(super) fn find_cgroup(proc: &Path, path: &str) -> Option<Cgroup> {
    let root = root(proc)?;
    let path = Path::new(path.trim_matches('/'));
    let id = fs::metadata(root.join(path)).ok()?.ino();
    let level = u32::try_from(path.components().count()).ok()?;
    Some(Cgroup { level, id })
}

/// Maximum depth at which a pod's cgroup is searched.
const MAX_DEPTH: usize = 6;

/// Finds the cgroup that kubelet creates for a pod, before it starts any container of it, by one of these names: the
/// pod's UID, or the configuration hash of a static pod. `None` if the node has no hierarchy of version 2, or kubelet
/// makes no cgroups in it.
pub(super) fn find_pod_cgroup<'a>(
    proc: &Path,
    names: impl Iterator<Item = &'a str>,
) -> Option<PathBuf> {
    // systemd's driver writes `_` for `-`, which separates the names of slices.
    let names: Vec<_> = names
        .flat_map(|name| {
            let of_systemd = format!("pod{}.slice", name.replace('-', "_"));
            [format!("pod{name}"), of_systemd]
        })
        .collect();
    let mut level = vec![root(proc)?];
    for _ in 0..MAX_DEPTH {
        let mut next = Vec::new();
        for directory in level {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                let name = entry.file_name();
                let Some(name) = name.to_str() else { continue };
                let is_of = |pod: &String| {
                    let before = name.strip_suffix(pod.as_str());
                    before.is_some_and(|before| before.is_empty() || before.ends_with('-'))
                };
                if names.iter().any(is_of) {
                    return Some(entry.path());
                }
                if may_contain_pods(name) && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    next.push(entry.path());
                }
            }
        }
        level = next;
    }
    None
}

/// Whether kubelet's pods may be below a cgroup of this name: `kubepods`, `kubelet`, and classes of service.
fn may_contain_pods(name: &str) -> bool {
    name.contains("kube") || matches!(name, "burstable" | "besteffort")
}

/// Returns the directory of the node's cgroup v2 hierarchy.
fn root(proc: &Path) -> Option<PathBuf> {
    let mounted = proc.join("1/root/sys/fs/cgroup");
    // Beside hierarchies of version 1, that of version 2 has a directory of its own.
    let mut roots = [mounted.clone(), mounted.join("unified")].into_iter();
    roots.find(|root| root.join("cgroup.controllers").exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_found_by_the_names_of_both_cgroup_drivers() {
        const UID: &str = "2c48913c-b29f-11e7-9350-020968147796";
        const OTHER: &str = "3c48913c-b29f-11e7-9350-020968147796";
        let under = |uid: &str| uid.replace('-', "_");
        for root in ["", "unified"] {
            for path in [
                format!("kubepods/burstable/pod{UID}"),
                format!("kubepods/pod{UID}"),
                format!(
                    "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice",
                    under(UID)
                ),
                format!(
                    "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{}.slice",
                    under(UID)
                ),
            ] {
                let proc = tempfile::tempdir().unwrap();
                let root = proc.path().join("1/root/sys/fs/cgroup").join(root);
                fs::create_dir_all(root.join(&path)).unwrap();
                fs::create_dir_all(root.join(format!("system.slice/pod{OTHER}"))).unwrap();
                let find = |name| find_pod_cgroup(proc.path(), [name].into_iter());
                assert_eq!(find(UID), None, "version 1 alone");
                fs::write(root.join("cgroup.controllers"), "").unwrap();
                assert_eq!(find(UID), Some(root.join(&path)));
                let both = [OTHER, UID].into_iter();
                assert_eq!(find_pod_cgroup(proc.path(), both), Some(root.join(&path)));
                assert_eq!(find(OTHER), None, "no cgroup of kubelet's");
                assert_eq!(find(&UID[1..]), None);
            }
        }
    }

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
