//! Cgroups of the cluster's nodes, in each cgroup hierarchy of the machine.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

const CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// Creates a node's cgroup.
pub(crate) fn make(name: &str) -> Result<()> {
    // The runtime creates its own cgroup in a version 2 hierarchy beside those of version 1.
    for hierarchy in hierarchies()?
        .into_iter()
        .filter(|hierarchy| !hierarchy.ends_with("unified"))
    {
        let cgroup = hierarchy.join(name);
        fs::create_dir_all(&cgroup).with_context(|| format!("cannot make {}", cgroup.display()))?;
        // In version 1 a cpuset starts empty, and no process can run in it.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if hierarchy.ends_with("cpuset") {
                fs::write(cgroup.join(file), fs::read(hierarchy.join(file))?)?;
            }
        }
        let controllers = cgroup.join("cgroup.controllers");
        if controllers.exists() {
            let enable: String = fs::read_to_string(controllers)?
                .split_whitespace()
                .map(|controller| format!("+{controller} "))
                .collect();
            fs::write(cgroup.join("cgroup.subtree_control"), enable)?;
        }
    }
    Ok(())
}

/// Removes the cgroups whose names have this prefix; their processes must have ended.
pub(crate) fn remove(prefix: &str) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    for hierarchy in hierarchies()? {
        for entry in fs::read_dir(&hierarchy)? {
            let entry = entry?;
            if !entry.file_name().to_string_lossy().starts_with(prefix) || !entry.path().is_dir() {
                continue;
            }
            while let Err(error) = remove_tree(&entry.path()) {
                // The kernel needs a moment to release processes that have just ended.
                ensure!(
                    Instant::now() < deadline,
                    "cannot remove {}: {error}",
                    entry.path().display()
                );
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
    Ok(())
}

fn remove_tree(cgroup: &Path) -> io::Result<()> {
    for entry in fs::read_dir(cgroup)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_tree(&path)?;
        }
    }
    fs::remove_dir(cgroup)
}

/// Returns the cgroup hierarchies: version 1 has a directory for each controller, version 2 has
/// one.
fn hierarchies() -> Result<Vec<PathBuf>> {
    let root = Path::new(CGROUP_ROOT);
    if root.join("cgroup.controllers").exists() {
        return Ok(vec![root.to_path_buf()]);
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(root).context("no cgroups at /sys/fs/cgroup")? {
        let path = entry?.path();
        // The same hierarchy under a second name would be created twice.
        if path.join("cgroup.procs").exists() && !path.is_symlink() {
            found.push(path);
        }
    }
    Ok(found)
}
