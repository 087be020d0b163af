//! Paths of cargo's build artefacts that tests use.

use std::path::{Path, PathBuf};

/// Returns cargo's target directory.
pub fn target_directory() -> PathBuf {
    ancestor_directory(3)
}

/// Returns the path of a binary of the workspace. Binaries are in `target/<profile>`, test programs in
/// `target/<profile>/deps`.
pub fn built_binary(name: &str) -> PathBuf {
    let path = ancestor_directory(2).join(name);
    assert!(
        path.exists(),
        "{} is not built: use `cargo xtask test`",
        path.display()
    );
    path
}

fn ancestor_directory(levels: usize) -> PathBuf {
    let me = std::env::current_exe().expect("a running test has a path");
    let directory = me.ancestors().nth(levels).map(Path::to_path_buf);
    directory.expect("tests are in target/<profile>/deps")
}
