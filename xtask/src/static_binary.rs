//! Statically linked release binaries. The C library's pages are a considerable part of a small process's memory, and a
//! static binary runs on hosts without any library. Binaries are not position-independent, because relocations would
//! take a megabyte of memory in every process (ASLR still applies to the heap, the stack and mappings).

mod profile;

use std::{
    fs,
    path::{Path, PathBuf},
};

use ambit_images::Architecture;
use anyhow::{Result, ensure};

pub(crate) use self::profile::{PROGRAMS as PROFILED_PROGRAMS, path as profile_path};
use crate::{cross, shell};

/// Builds a binary of a package for an architecture, checks that it is statically linked, and returns its path.
///
/// The target directory is separate, so that the package's own set of features does not cause rebuilds of other
/// packages.
///
/// Proxies are optimised by the checked-in profile (see [`profile`]).
pub(crate) fn build(package: &str, binary: &str, architecture: Architecture) -> Result<PathBuf> {
    let flags = profile::flags(binary, architecture);
    build_with(&flags, &target_dir(), package, binary, architecture)
}

/// Builds a binary as [`build`] does, in another target directory and with `flags` of rustc for all crates.
pub(crate) fn build_with(
    flags: &[String],
    target: &Path,
    package: &str,
    binary: &str,
    architecture: Architecture,
) -> Result<PathBuf> {
    let mut cargo = shell::cargo(&[
        "rustc",
        "--locked",
        "--release",
        "--package",
        package,
        "--bin",
        binary,
    ]);
    cargo.arg("--target-dir").arg(target);
    cross::configure(&mut cargo, architecture)?;
    if !flags.is_empty() {
        // Separated by a character that no path contains.
        cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    }
    // Fat LTO removes unused code of which `thin` keeps a considerable part.
    cargo.env("CARGO_PROFILE_RELEASE_LTO", "fat");
    cargo.args([
        "--",
        "-Ctarget-feature=+crt-static",
        "-Crelocation-model=static",
    ]);
    shell::run(
        &format!("build {binary}, static, {}", architecture.name()),
        &mut cargo,
    )?;
    let path = cross::release_dir(target, architecture).join(binary);
    ensure!(
        !ambit_images::has_interpreter(&path)?,
        "{} needs a dynamic linker",
        path.display()
    );
    let size = fs::metadata(&path)?.len();
    eprintln!("    {}: {} kB, static", path.display(), size / 1000);
    Ok(path)
}

/// Returns the target directory of release builds for images.
pub(crate) fn target_dir() -> PathBuf {
    shell::target_dir().join("static")
}
