//! Rules for dependencies between crates: the folders of `crates/` are layers.

use std::path::Path;

use super::workspace::{Package, Workspace};
use crate::shell;

/// Folders of `crates/`, lowest layer first: a crate may depend on crates of lower folders and of its own folder.
const LAYER_FOLDERS: &[&str] = &[
    "protocol",
    "runtime",
    "node",
    "dataplane",
    "control-plane",
    "lab",
    PROGRAMS,
    DEVELOPMENT,
];

/// Folder of the programs, whose crates must not depend on each other.
const PROGRAMS: &str = "programs";

/// Folder of development crates, which may depend on all crates; no shipped crate depends on them.
pub(super) const DEVELOPMENT: &str = "development";

/// Packages outside of the layers: they may depend on any crate, and no crate depends on them.
const PACKAGES_OUTSIDE_LAYERS: [&str; 2] = ["ambit-fuzz", "xtask"];

pub(super) fn find_violations(workspace: &Workspace) -> Vec<String> {
    let mut broken = Vec::new();
    for package in workspace
        .workspace_members()
        .filter(|package| !PACKAGES_OUTSIDE_LAYERS.contains(&&*package.name))
    {
        let name = &package.name;
        let Some((own, own_folder)) = layer_rank(package) else {
            broken.push(format!(
                "{name} is in none of the folders of crates/ that xtask/src/tidy/layers.rs lists"
            ));
            continue;
        };
        let used = workspace.packages_by_id(&package.normal);
        for dependency in used.filter(|dependency| dependency.is_workspace_member()) {
            let allowed = layer_rank(dependency)
                .is_some_and(|(theirs, _)| theirs < own || theirs == own && own_folder != PROGRAMS);
            if !allowed {
                broken.push(format!(
                    "{name} ({own_folder}) must not use {}",
                    dependency.name
                ));
            }
        }
    }
    broken
}

/// Returns the folder of a crate below `crates/`; `None` for packages outside of it.
pub(super) fn folder(package: &Package) -> Option<&'static str> {
    Some(layer_rank(package)?.1)
}

fn layer_rank(package: &Package) -> Option<(usize, &'static str)> {
    let path = package.dir.strip_prefix(shell::workspace_root()).ok()?;
    let parent = path.strip_prefix("crates").ok()?.parent()?;
    let mut folders = LAYER_FOLDERS.iter().enumerate();
    let (rank, folder) = folders.find(|(_, folder)| parent == Path::new(folder))?;
    Some((rank, folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(path: &str, uses: &[&str]) -> Package {
        let name = path.rsplit('/').next().unwrap_or_default();
        Package {
            name: name.to_owned(),
            dir: shell::workspace_root().join(path),
            normal: uses.iter().map(ToString::to_string).collect(),
            ..Package::default()
        }
    }

    #[test]
    fn a_crate_uses_lower_layers_and_its_own() {
        let workspace = Workspace::of([
            package("crates/protocol/model", &[]),
            package("crates/protocol/wire", &["model"]),
            package("crates/programs/agent", &["wire"]),
        ]);
        assert_eq!(find_violations(&workspace), Vec::<String>::new());
        let workspace = Workspace::of([
            package("crates/protocol/model", &["agent"]),
            package("crates/programs/agent", &["cli"]),
            package("crates/programs/cli", &["testkit"]),
            package("crates/development/testkit", &[]),
            package("crates/elsewhere", &[]),
        ]);
        let broken = find_violations(&workspace);
        assert_eq!(broken.len(), 4, "{broken:?}");
    }
}
