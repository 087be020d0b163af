//! Runs programs in the workspace's root and prints each command.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context, Result, ensure};

/// Returns the path of the workspace's root.
pub(crate) fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map_or_else(PathBuf::new, Path::to_path_buf)
}

/// Returns a command that runs `cargo`, of the toolchain that built this program, in the workspace's root.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args(args).current_dir(workspace_root());
    command
}

/// Environment variable of cargo with a program that is run instead of rustc for crates of the workspace.
pub(crate) const WORKSPACE_WRAPPER: &str = "RUSTC_WORKSPACE_WRAPPER";

/// Returns a command that runs `cargo` with Clippy's compiler for crates of the workspace: it compiles as rustc does, and
/// a lint fails the build. Checking lints in a separate run of Clippy would compile every library once more.
pub(crate) fn linting_cargo(args: &[&str]) -> Command {
    let mut command = cargo(args);
    command
        .env(
            WORKSPACE_WRAPPER,
            Path::new(env!("CARGO")).with_file_name("clippy-driver"),
        )
        // The form in which `cargo clippy` gives the arguments after `--` to Clippy's compiler.
        .env(
            "CLIPPY_ARGS",
            "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__",
        );
    command
}

/// Runs a command to its end, and prints its purpose `what` and its duration. A failure is an error.
pub(crate) fn run(what: &str, command: &mut Command) -> Result<()> {
    eprintln!("==> {what}");
    let start = Instant::now();
    let status = command
        .status()
        .with_context(|| format!("cannot start: {what}"))?;
    ensure!(status.success(), "{what} failed ({status})");
    eprintln!("    {what}: {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// Returns the same command with a scheduling priority lower by `niceness`, up to 19.
pub(crate) fn nice(command: &Command, niceness: u8) -> Command {
    let mut nice = Command::new("nice");
    nice.arg(format!("-n{niceness}")).arg(command.get_program());
    copy_environment(command, &mut nice);
    nice
}

/// Adds the arguments, the directory and the environment of a command to another one.
pub(crate) fn copy_environment(from: &Command, to: &mut Command) {
    to.args(from.get_args());
    if let Some(directory) = from.get_current_dir() {
        to.current_dir(directory);
    }
    for (name, value) in from.get_envs() {
        match value {
            Some(value) => to.env(name, value),
            None => to.env_remove(name),
        };
    }
}

/// Returns cargo's target directory.
pub(crate) fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace_root().join("target"), PathBuf::from)
}
