//! Statically linked release binaries. The C library's pages are a considerable part of a small process's memory, and a
//! static binary runs on hosts without any library. Binaries are not position-independent, because relocations would
//! take a megabyte of memory in every process (ASLR still applies to the heap, the stack and mappings).

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, ensure};

use crate::shell;

/// Builds the only binary of a package, checks that it is statically linked, and returns its path.
///
/// The target directory is separate, so that the package's own set of features does not cause rebuilds of other
/// packages.
pub(crate) fn build(package: &str) -> Result<PathBuf> {
    let target = target_dir();
    let mut cargo = shell::cargo(&[
        "rustc",
        "--locked",
        "--release",
        "--package",
        package,
        "--bin",
        package,
    ]);
    cargo.arg("--target-dir").arg(&target);
    // Fat LTO removes unused code of which `thin` keeps a considerable part.
    cargo.env("CARGO_PROFILE_RELEASE_LTO", "fat");
    cargo.args([
        "--",
        "-Ctarget-feature=+crt-static",
        "-Crelocation-model=static",
    ]);
    shell::run(&format!("build {package}, static"), &mut cargo)?;
    let path = target.join("release").join(package);
    let elf = fs::read(&path)?;
    ensure!(
        !has_interpreter(&elf)?,
        "{} needs a dynamic linker",
        path.display()
    );
    eprintln!("    {}: {} kB, static", path.display(), elf.len() / 1000);
    Ok(path)
}

/// Returns the target directory of builds for images.
pub(crate) fn target_dir() -> PathBuf {
    shell::target_dir().join("static")
}

/// Whether a 64-bit ELF file has a program header of type PT_INTERP.
fn has_interpreter(elf: &[u8]) -> Result<bool> {
    const PT_INTERP: u32 = 3;
    let number = |at: usize, size: usize| -> Result<usize> {
        let bytes = elf.get(at..at + size).context("a short ELF file")?;
        Ok(bytes
            .iter()
            .rev()
            .fold(0, |value, byte| value << 8 | usize::from(*byte)))
    };
    ensure!(
        elf.starts_with(b"\x7fELF\x02\x01"),
        "not a 64-bit little-endian ELF file"
    );
    let (start, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for index in 0..count {
        if number(start + index * size, 4)? == PT_INTERP as usize {
            return Ok(true);
        }
    }
    Ok(false)
}
