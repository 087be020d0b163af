//! Compiles the BPF programs of `crates/node/bpf/programs`. The object is checked in, so that building Ambit needs no
//! compiler for C's BPF target.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};

use crate::{setup, shell};

/// Directories of the kernel's headers that depend on the architecture; each machine has its own.
const HEADERS: [&str; 2] = [
    "/usr/include/x86_64-linux-gnu",
    "/usr/include/aarch64-linux-gnu",
];

/// Compiles the programs; with `check`, compares the object with the checked-in one.
///
/// The compiler is of one version, and the object without debugging information has no path and no time, so that it is
/// the same on every machine.
pub(crate) fn build(check: bool) -> Result<()> {
    setup::ensure(setup::Purpose::Bpf)?;
    let programs = shell::workspace_root().join("crates/node/bpf/programs");
    let (source, checked_in) = (programs.join("capture.c"), programs.join("capture.o"));
    if !check {
        return compile(&source, &checked_in);
    }
    let scratch = shell::target_dir().join("bpf");
    fs::create_dir_all(&scratch)?;
    let object = scratch.join("capture.o");
    compile(&source, &object)?;
    ensure!(
        fs::read(&object)? == fs::read(&checked_in)?,
        "{} is stale: run `cargo xtask bpf`",
        checked_in.display()
    );
    Ok(())
}

fn compile(source: &Path, object: &Path) -> Result<()> {
    let mut clang = Command::new(setup::CLANG_PATH);
    clang
        .args(["-target", "bpfel", "-mcpu=v3", "-O2", "-g0"])
        .args(["-Wall", "-Wextra", "-Werror", "-std=gnu11", "-fno-ident"]);
    for headers in HEADERS {
        clang.args(["-idirafter", headers]);
    }
    clang.arg("-c").arg(source).arg("-o").arg(object);
    shell::run("the BPF programs", &mut clang)
        .with_context(|| format!("cannot compile {}", source.display()))
}
