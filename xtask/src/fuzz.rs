//! `cargo xtask fuzz`: a short run of every fuzz target, with the stable toolchain.
//!
//! libFuzzer needs only coverage counters, which stable rustc can emit through LLVM flags; so neither nightly nor
//! cargo-fuzz is required. Corpora are in `fuzz/corpus/<target>`.

use std::{fs, process::Command};

use anyhow::{Context, Result, ensure};

use crate::shell;

/// Compiler wrapper that instruments the workspace's crates for coverage.
const INSTRUMENTED_RUSTC: &str = "fuzz/instrumented-rustc";

/// Example that is built beside the fuzz targets. With it, cargo enables the features of dev-dependencies.
const EMPTY_EXAMPLE: &str = "empty";

/// Builds all fuzz targets.
///
/// The command selects the whole workspace and an example of it, which gives third-party libraries the features of the
/// tests' build, and so shares them: the package of the targets alone would build most of them again, Wasm's compiler
/// included.
///
/// # Errors
///
/// Fails if the targets cannot be listed, or one does not compile.
pub(crate) fn build() -> Result<()> {
    let mut cargo = shell::cargo(&["build", "--workspace", "--example", EMPTY_EXAMPLE]);
    for name in targets()? {
        cargo.args(["--bin", &name]);
    }
    cargo.env(
        shell::WORKSPACE_WRAPPER,
        shell::workspace_root().join(INSTRUMENTED_RUSTC),
    );
    shell::run("build the fuzz targets", &mut cargo)
}

/// Returns the names of the fuzz targets.
fn targets() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(shell::workspace_root().join("fuzz/src/bin"))? {
        let source = entry?.path();
        if source.extension().is_some_and(|ending| ending == "rs") {
            let name = source.file_stem().context("a target without a name")?;
            names.push(name.to_string_lossy().into_owned());
        }
    }
    ensure!(!names.is_empty(), "there are no fuzz targets");
    Ok(names)
}

/// Builds every fuzz target and runs each for this number of seconds.
pub(crate) fn run(seconds: Option<&str>) -> Result<()> {
    let seconds = seconds
        .unwrap_or("5")
        .parse()
        .context("fuzz takes a number of seconds")?;
    build()?;
    for (name, mut command) in fuzz_commands(seconds)? {
        let output = command
            .output()
            .with_context(|| format!("cannot start the fuzz target {name}"))?;
        let report = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "fuzz target {name} found something:\n{report}"
        );
        let runs = report
            .lines()
            .find_map(|l| l.strip_prefix("stat::number_of_executed_units:"));
        eprintln!("==> fuzz {name}: {} inputs", runs.unwrap_or("?").trim());
    }
    Ok(())
}

/// Returns the commands that run the fuzz targets, which [`build`] has built, for this number of seconds each.
///
/// # Errors
///
/// Fails if the targets or their corpora cannot be read.
pub(crate) fn fuzz_commands(seconds: u32) -> Result<Vec<(String, Command)>> {
    let fuzz = shell::workspace_root().join("fuzz");
    let target_dir = shell::target_dir();
    let scratch = target_dir.join("fuzz");
    let mut runs = Vec::new();
    for name in targets()? {
        let corpus = fuzz.join("corpus").join(&name);
        fs::create_dir_all(&corpus)?;
        // New inputs go to a scratch directory: the checked-in corpus is grown by hand.
        let found = scratch.join("found").join(&name);
        fs::create_dir_all(&found)?;
        let mut command = Command::new(target_dir.join("debug").join(&name));
        command
            .arg(format!("-max_total_time={seconds}"))
            .args(["-rss_limit_mb=1024", "-timeout=5", "-print_final_stats=1"])
            .arg(format!("-artifact_prefix={}/", scratch.display()))
            .args([&found, &corpus]);
        runs.push((name, command));
    }
    Ok(runs)
}
