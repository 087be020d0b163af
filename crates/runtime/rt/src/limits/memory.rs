//! Memory limit of the process from its cgroups (v1 and v2).

use std::{fs, path::Path};

/// Smallest value in cgroup v1 that means no limit; no machine has this much memory.
const NO_LIMIT: u64 = 1 << 60;

/// Returns the smallest memory limit of the process's cgroups in bytes; `None` if there is none.
pub fn memory_limit() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    smallest_limit(Path::new("/sys/fs/cgroup"), &own)
}

/// Returns the smallest limit of the cgroups below `root` that `own` lists in the format of `/proc/self/cgroup`, and
/// of their parents.
fn smallest_limit(root: &Path, own: &str) -> Option<u64> {
    let of_line = |line: &str| {
        // hierarchy-ID:controllers:path
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let (root, file) = if controllers.is_empty() {
            (root.to_owned(), "memory.max")
        } else if controllers.split(',').any(|one| one == "memory") {
            (root.join("memory"), "memory.limit_in_bytes")
        } else {
            return None;
        };
        let path = Path::new(path.trim_start_matches('/'));
        // Inside a container the mounted root may be the process's own group, regardless of the path.
        let groups = path.ancestors().map(|above| root.join(above).join(file));
        groups.filter_map(|file| read_limit(&file)).min()
    };
    own.lines().filter_map(of_line).min()
}

fn read_limit(file: &Path) -> Option<u64> {
    let bytes: u64 = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    (bytes < NO_LIMIT).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn read(files: &[(&str, &str)], own: &str) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let file = root.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        smallest_limit(root.path(), own)
    }

    #[test]
    fn the_smallest_limit_of_all_groups_counts_in_both_versions() {
        let pod = "0::/kubepods/pod1/main\n";
        for (what, files, own, expected) in [
            (
                "version 2, in a container",
                &[("memory.max", "1073741824\n")][..],
                "0::/\n",
                Some(1024),
            ),
            (
                "version 2, on the host",
                &[
                    ("kubepods/pod1/main/memory.max", "max\n"),
                    ("kubepods/pod1/memory.max", "536870912\n"),
                    ("kubepods/memory.max", "1073741824\n"),
                ],
                pod,
                Some(512),
            ),
            (
                "a path of the host's in a container",
                &[("memory.max", "1073741824")],
                pod,
                Some(1024),
            ),
            (
                "version 1",
                &[("memory/a/memory.limit_in_bytes", "268435456\n")],
                "4:cpu,cpuacct:/b\n3:memory:/a\n0::/\n",
                Some(256),
            ),
            (
                "version 1 without a limit",
                &[("memory/memory.limit_in_bytes", "9223372036854771712\n")],
                "3:memory:/\n",
                None,
            ),
            ("no limit", &[("memory.max", "max\n")], "0::/\n", None),
            ("no cgroups", &[], "", None),
        ] {
            assert_eq!(
                read(files, own),
                expected.map(|mib: u64| mib * MIB),
                "{what}"
            );
        }
    }
}
