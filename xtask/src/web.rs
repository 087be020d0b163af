//! Builds the JavaScript bundle of `ambit dashboard` from `web/`. The result is checked in, so that building Ambit
//! needs no Node.js.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use crate::{setup, shell};

/// Maximum size of the bundle in bytes, which is embedded in the command-line program.
const MAX_BUNDLE_BYTES: u64 = 600 * 1024;

/// Builds the bundle; with `check`, compares it with the checked-in bundle, checks types, and runs the unit tests.
pub(crate) fn build(check: bool) -> Result<()> {
    setup::ensure(setup::Purpose::Web)?;
    install()?;
    let checked_in = shell::workspace_root().join("crates/programs/cli/src/dashboard/bundle");
    let scratch = shell::target_dir().join("web");
    let out = if check { &scratch } else { &checked_in };
    if check {
        let mut types = node("node_modules/typescript/bin/tsc");
        shell::run("types of the dashboard's page", types.arg("--noEmit"))?;
        let mut tests = node("test/unit.mjs");
        shell::run("tests of the dashboard's page", &mut tests)?;
    }
    // Remove files that are no longer part of the bundle.
    remove_directory(out)?;
    shell::run("the dashboard's bundle", node("build.mjs").arg(out))?;
    let names = file_names(out)?;
    let mut size = 0;
    for name in &names {
        size += fs::metadata(out.join(name))?.len();
    }
    ensure!(
        size <= MAX_BUNDLE_BYTES,
        "the dashboard's bundle has {size} bytes: at most {MAX_BUNDLE_BYTES} may be in the command line"
    );
    if check {
        let same = |name: &String| {
            let read = |directory: &Path| fs::read(directory.join(name)).ok();
            read(out) == read(&checked_in)
        };
        let is_fresh = names == self::file_names(&checked_in)? && names.iter().all(same);
        ensure!(
            is_fresh,
            "{} is stale: run `cargo xtask web`",
            checked_in.display()
        );
    }
    Ok(())
}

/// Installs the npm packages of the lock file, unless they are installed.
pub(crate) fn install() -> Result<()> {
    let web = directory();
    let stamp = web.join("node_modules/.installed");
    let lock = fs::read(web.join("package-lock.json"))?;
    if fs::read(&stamp).is_ok_and(|installed| installed == lock) {
        return Ok(());
    }
    // Packages must not run install scripts.
    let mut npm = Command::new("npm");
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
        .current_dir(&web);
    shell::run("packages of the dashboard's page", &mut npm)?;
    fs::write(stamp, lock).context("cannot write in web/node_modules")
}

fn node(script: &str) -> Command {
    let mut node = Command::new("node");
    node.arg(script).current_dir(directory());
    node
}

fn directory() -> PathBuf {
    shell::workspace_root().join("web")
}

fn remove_directory(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

fn file_names(directory: &Path) -> Result<BTreeSet<String>> {
    let entries = fs::read_dir(directory)?;
    let name =
        |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
    entries.map(name).collect()
}
