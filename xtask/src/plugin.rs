//! `cargo xtask plugin`: the CNI plugin as one static file, since it runs on hosts with any C library.

use std::{path::PathBuf, process::Command};

use anyhow::{Result, ensure};

use crate::static_binary;

/// Builds it, checks that it is what it should be, and gives its path.
pub(crate) fn build() -> Result<PathBuf> {
    let path = static_binary::build("ambit-cni")?;
    let version = Command::new(&path).env("CNI_COMMAND", "VERSION").output()?;
    ensure!(version.status.success(), "{} does not run", path.display());
    Ok(path)
}
