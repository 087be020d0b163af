//! `cargo xtask plugin`: the CNI plugin as one static file, since it runs on hosts whose C library nobody
//! chose. Only this binary: the others resolve names, which a static C library does badly.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, ensure};

use crate::shell;

/// Builds it, checks that it is what it should be, and gives its path.
pub(crate) fn build() -> Result<PathBuf> {
    let target = shell::target_dir().join("static");
    let mut cargo = shell::cargo(&[
        "rustc",
        "--release",
        "--package",
        "ambit-cni",
        "--bin",
        "ambit-cni",
    ]);
    cargo
        .arg("--target-dir")
        .arg(&target)
        .args(["--", "-Ctarget-feature=+crt-static"]);
    shell::run("build the static CNI plugin", &mut cargo)?;
    let path = target.join("release/ambit-cni");
    let elf = fs::read(&path)?;
    ensure!(
        !has_interpreter(&elf)?,
        "{} needs a dynamic linker",
        path.display()
    );
    let version = std::process::Command::new(&path)
        .env("CNI_COMMAND", "VERSION")
        .output()?;
    ensure!(version.status.success(), "{} does not run", path.display());
    eprintln!("    {}: {} kB, static", path.display(), elf.len() / 1000);
    Ok(path)
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
