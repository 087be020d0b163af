//! `cargo xtask plugin`: builds the CNI plugin as one statically linked file, since it runs on hosts with any C
//! library.

use std::path::PathBuf;

use ambit_images::Architecture;
use anyhow::{Result, ensure};

use crate::static_binary;

/// Builds the CNI plugin for this machine and returns its path.
pub(crate) fn build_native() -> Result<PathBuf> {
    build(Architecture::native()?)
}

/// Builds the CNI plugin for an architecture, checks that it is statically linked and starts, and returns its path.
pub(crate) fn build(architecture: Architecture) -> Result<PathBuf> {
    let path = static_binary::build("ambit-cni", "ambit-cni", architecture)?;
    let mut plugin = ambit_images::run_command(architecture, &path);
    let version = plugin.env("CNI_COMMAND", "VERSION").output()?;
    ensure!(version.status.success(), "{} does not run", path.display());
    Ok(path)
}
