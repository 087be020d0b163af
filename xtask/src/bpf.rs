//! Compiles the BPF programs of `crates/node/bpf`. The objects are checked in, so that building Ambit needs no
//! compiler for C's BPF target.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};

use crate::{setup, shell};

/// Directories of the kernel's headers that depend on the architecture; each machine has its own.
const HEADERS: [&str; 2] = [
    "/usr/include/x86_64-linux-gnu",
    "/usr/include/aarch64-linux-gnu",
];

/// Sources of the programs, below `crates/node/bpf`; each object is beside its source.
const SOURCES: [&str; 2] = ["programs/capture.c", "examples/joined_sockets/joined.c"];

/// Compiles the programs; with `check`, compares the objects with the checked-in ones.
///
/// The compiler is of one version, and the objects without debugging information have no path and no time, so that they
/// are the same on every machine.
pub(crate) fn build(check: bool) -> Result<()> {
    setup::ensure(setup::Purpose::Bpf)?;
    let scratch = shell::target_dir().join("bpf");
    fs::create_dir_all(&scratch)?;
    for source in SOURCES {
        let source = shell::workspace_root().join("crates/node/bpf").join(source);
        let checked_in = source.with_extension("o");
        if !check {
            compile(&source, &checked_in)?;
            continue;
        }
        let object = scratch.join("checked.o");
        compile(&source, &object)?;
        ensure!(
            fs::read(&object)? == fs::read(&checked_in)?,
            "{} is stale: run `cargo xtask bpf`",
            checked_in.display()
        );
    }
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
