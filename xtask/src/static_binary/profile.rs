//! Profile by which the proxies are optimised: a checked-in file, which `cargo xtask profile` records.
//!
//! A profile names functions with hashes of the compiler's version, of each library's and of features. So it is for one
//! architecture, and functions that have changed since are optimised as without it, which only makes them slower.

use std::path::PathBuf;

use ambit_images::Architecture;

use crate::shell;

/// Programs that are optimised by a profile, one for both, so that their builds share libraries.
pub(crate) const PROGRAMS: [&str; 2] = ["ambit-node-proxy", "ambit-waypoint"];

/// Returns the flags of rustc that optimise a program by the profile; none for other programs and without a profile.
pub(super) fn flags(program: &str, architecture: Architecture) -> Vec<String> {
    let profile = path(architecture);
    if !PROGRAMS.contains(&program) || !profile.exists() {
        return Vec::new();
    }
    vec![
        format!("-Cprofile-use={}", profile.display()),
        // Each function that has changed since the profile was recorded would be a warning.
        "-Cllvm-args=-no-pgo-warn-mismatch".to_owned(),
        // The profile contains no value counters. Without this flag, each function that lacks them would be a warning.
        "-Cllvm-args=-disable-vp".to_owned(),
    ]
}

/// Returns the path of the profile for an architecture.
pub(crate) fn path(architecture: Architecture) -> PathBuf {
    let file = format!("{}.profdata", architecture.name());
    shell::workspace_root().join("build/profiles").join(file)
}
