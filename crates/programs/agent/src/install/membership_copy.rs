//! Copy of `membership.json` that survives a reboot, beside the network configurations: until the agent runs again, the
//! plugin lets pods outside the mesh start by it.

use std::{fs, path::Path};

use super::files::{self, FileError};
use crate::membership;

/// File name, which runtimes do not take for a configuration.
pub const FILE: &str = "ambit-cni.membership";

/// Updates the copy, if there is something to copy.
///
/// # Errors
/// When the directory cannot be written.
pub fn refresh(run_dir: &Path, net_dir: &Path) -> Result<bool, FileError> {
    // An agent that has not heard of any namespace yet has no file: the copy of before stays.
    match fs::read(run_dir.join(membership::FILE)) {
        Ok(text) => files::keep(&net_dir.join(FILE), &text),
        Err(_) => Ok(false),
    }
}
