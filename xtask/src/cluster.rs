//! `cargo xtask cluster ...`: a real Kubernetes on this machine, for tests and development.

use std::{path::PathBuf, process::Command};

use anyhow::Result;

use crate::{images, setup, shell};

/// Passes the arguments to `ambit-cluster`; `load` without archives first builds Ambit's images from the source tree.
pub(crate) fn run(args: &[String]) -> Result<()> {
    setup::ensure(setup::Purpose::Cluster)?;
    let mut args = args.to_vec();
    if args.iter().any(|arg| arg == "load") && !args.iter().any(|arg| arg.ends_with(".tar")) {
        let archives = images::for_cluster(&images::debug()?)?;
        args.extend(archives.iter().map(|path| path.display().to_string()));
    }
    let status = command()?.args(&args).status()?;
    if !status.success() {
        // `ambit-cluster` has printed the reason.
        std::process::exit(status.code().unwrap_or(1));
    }
    Ok(())
}

/// Builds `ambit-cluster` and returns a command that runs it.
pub(crate) fn command() -> Result<Command> {
    let build = shell::cargo(&["build", "--quiet", "--package", "ambit-cluster"]).status()?;
    anyhow::ensure!(build.success(), "ambit-cluster does not build");
    let binary: PathBuf = shell::target_dir().join("debug/ambit-cluster");
    let mut command = Command::new(binary);
    command
        .arg("--target")
        .arg(shell::target_dir())
        .arg("--sources")
        .arg(shell::root().join("build"));
    Ok(command)
}
