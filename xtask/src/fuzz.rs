//! `cargo xtask fuzz`: a short run of every fuzz target, on the ordinary toolchain.
//!
//! libFuzzer needs only coverage counters, which stable rustc can emit through LLVM flags; so neither
//! nightly nor cargo-fuzz is required. Corpora are in `fuzz/corpus/<target>`.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};

use crate::shell;

const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Ccodegen-units=1 -Cdebug-assertions --cfg fuzzing";
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// What builds all targets.
pub(crate) fn build() -> Command {
    let mut cargo = shell::cargo(&["build", "--release", "--bins", "--target", TRIPLE]);
    cargo
        .current_dir(shell::root().join("fuzz"))
        .env("CARGO_TARGET_DIR", target_dir())
        .env("RUSTFLAGS", COVERAGE);
    cargo
}

fn target_dir() -> PathBuf {
    shell::target_dir().join("fuzz")
}

/// Builds every target, and runs each for a while.
pub(crate) fn run(seconds: Option<&str>) -> Result<()> {
    let seconds = seconds
        .unwrap_or("5")
        .parse()
        .context("fuzz takes a number of seconds")?;
    shell::run("build the fuzz targets", &mut build())?;
    for (name, mut command) in runs(seconds)? {
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

/// Commands that run the targets, which [`build`] has built, for some seconds each.
///
/// # Errors
/// If the targets or their corpora cannot be read.
pub(crate) fn runs(seconds: u32) -> Result<Vec<(String, Command)>> {
    let fuzz = shell::root().join("fuzz");
    let target_dir = target_dir();
    let mut runs = Vec::new();
    for entry in fs::read_dir(fuzz.join("fuzz_targets"))? {
        let source = entry?.path();
        if source.extension().is_none_or(|ending| ending != "rs") {
            continue;
        }
        let name = source.file_stem().context("a target without a name")?;
        let name = name.to_string_lossy().into_owned();
        let corpus = fuzz.join("corpus").join(&name);
        fs::create_dir_all(&corpus)?;
        // New inputs go to a scratch directory: the checked-in corpus is grown by hand.
        let found = target_dir.join("found").join(&name);
        fs::create_dir_all(&found)?;
        let mut command = Command::new(target_dir.join(TRIPLE).join("release").join(&name));
        command
            .arg(format!("-max_total_time={seconds}"))
            .args(["-rss_limit_mb=1024", "-timeout=5", "-print_final_stats=1"])
            .arg(format!("-artifact_prefix={}/", target_dir.display()))
            .args([&found, &corpus]);
        runs.push((name, command));
    }
    Ok(runs)
}
