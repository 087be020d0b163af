//! Copy of `membership.json` beside the network configurations, which survives a reboot. The plugin reads it to let
//! pods outside the mesh start until the agent runs again.

use std::{fs, path::Path};

use super::files::{self, FileError};
use crate::membership;

/// Name of the copy, which runtimes do not take for a network configuration.
pub const FILE_NAME: &str = "ambit-cni.membership";

/// Updates the copy from the run directory, if the agent has written the original; returns whether the copy differed.
///
/// # Errors
/// When the directory cannot be written.
pub fn refresh(run_dir: &Path, net_dir: &Path) -> Result<bool, FileError> {
    // An agent that has not heard of any namespace yet has no file: the copy of before stays.
    match fs::read(run_dir.join(membership::FILE_NAME)) {
        Ok(text) => files::write_if_changed(&net_dir.join(FILE_NAME), &text),
        Err(_) => Ok(false),
    }
}
