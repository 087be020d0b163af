//! Release binaries as one static file each: the C library's pages are a good part of what a small
//! process has mapped, and where the file runs needs no library at all. At fixed addresses, because
//! the relocations of a position-independent one are a megabyte of memory in every process (the heap,
//! the stack and mappings are placed at random all the same).

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, ensure};

use crate::shell;

/// Builds the one binary of a package, statically linked, checks that it is, and gives its path.
///
/// In a target directory of its own, so that a package built with the features it needs itself does not
/// make others build again.
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
    // As a whole: code that no other function needs is left out, which `thin` keeps a good part of.
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

/// The target directory of what is built for images.
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
