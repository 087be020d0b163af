//! Builds programs for other architectures than this machine's, with compiler targets, Debian's cross compilers, and an
//! emulator.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use ambit_images::Architecture;
use anyhow::{Context, Result, ensure};

use crate::{debian, shell};

/// Installs Rust's standard library for a target if it is missing. Only builds for that target need it.
pub(crate) fn install_target(target: &str) -> Result<()> {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "target-libdir", "--target", target]);
    let output = rustc.current_dir(shell::workspace_root()).output()?;
    let directory = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && Path::new(directory.trim()).is_dir() {
        return Ok(());
    }
    let mut rustup = Command::new("rustup");
    rustup
        .args(["target", "add", target])
        .current_dir(shell::workspace_root());
    shell::run(&format!("install the Rust target {target}"), &mut rustup)
}

/// Configures a cargo build for `architecture`; changes nothing for this machine's architecture.
pub(crate) fn configure(cargo: &mut Command, architecture: Architecture) -> Result<()> {
    if architecture.is_native() {
        return Ok(());
    }
    let target = architecture.rust_target();
    install_target(&target)?;
    let name = target.replace('-', "_");
    let gnu = architecture.gnu_triple();
    cargo
        .args(["--target", &target])
        .env(
            format!("CARGO_TARGET_{}_LINKER", name.to_uppercase()),
            format!("{gnu}-gcc"),
        )
        .env(format!("CC_{name}"), format!("{gnu}-gcc"))
        .env(format!("AR_{name}"), format!("{gnu}-ar"));
    if architecture == Architecture::Arm64 {
        // Kernels for arm64 have pages of 4, 16 or 64 KiB, and jemalloc works where pages are at most as large as it
        // was built for; it takes those of the building machine unless it gets a size (the exponent of 2).
        cargo.env("JEMALLOC_SYS_WITH_LG_PAGE", "16");
    }
    Ok(())
}

/// Returns the directory of release builds for `architecture` in a target directory.
pub(crate) fn release_dir(target_dir: &Path, architecture: Architecture) -> PathBuf {
    let directory = match architecture.is_native() {
        true => target_dir.to_path_buf(),
        false => target_dir.join(architecture.rust_target()),
    };
    directory.join("release")
}

/// Checks that a program starts and prints its version; in an emulator if it is for another architecture.
pub(crate) fn check_start(program: &Path, architecture: Architecture) -> Result<()> {
    let mut command = ambit_images::run_command(architecture, program);
    let output = command.arg("--version").output();
    let output = output.with_context(|| format!("cannot start {}", program.display()))?;
    ensure!(
        output.status.success(),
        "{} for {} does not start ({}): {}",
        program.display(),
        architecture.name(),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let version = String::from_utf8_lossy(&output.stdout);
    eprintln!("    {}: {}", architecture.name(), version.trim());
    Ok(())
}

/// Returns the path of a statically linked Busybox for `architecture`: this machine's, or the one in Debian's package
/// for the other architecture, which is downloaded without changing this machine's packages.
pub(crate) fn busybox(architecture: Architecture) -> Result<PathBuf> {
    if architecture.is_native() {
        return Ok(PathBuf::from(ambit_images::BUSYBOX));
    }
    let path = debian::unpack_package(architecture, "busybox-static")?.join("bin/busybox");
    ensure!(path.exists(), "the package has no {}", path.display());
    Ok(path)
}
