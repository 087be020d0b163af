//! Profiles by which static binaries are optimised: checked-in files, which `cargo xtask profile` records.
//!
//! Profiles name functions with hashes of the compiler's version, of each library's and of features. So a profile is for
//! one architecture, and functions that have changed since are optimised as without it, which only makes them slower.

use std::path::PathBuf;

use ambit_images::Architecture;

use crate::shell;

/// Returns the flags of rustc that optimise a program by its profile; none where there is none.
pub(super) fn flags(program: &str, architecture: Architecture) -> Vec<String> {
    let profile = path(program, architecture);
    if !profile.exists() {
        return Vec::new();
    }
    vec![
        format!("-Cprofile-use={}", profile.display()),
        // Each function that has changed since the profile was recorded would be a warning.
        "-Cllvm-args=-no-pgo-warn-mismatch".to_owned(),
    ]
}

/// Returns the path of a program's profile for an architecture.
pub(crate) fn path(program: &str, architecture: Architecture) -> PathBuf {
    let file = format!("{program}-{}.profdata", architecture.name());
    shell::workspace_root().join("build/profiles").join(file)
}
