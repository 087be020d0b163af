//! `cargo xtask test` and `check`: everything that must hold, in the order that fails fastest.

use std::{process::Command, thread};

use anyhow::{Result, anyhow};

use crate::{fuzz, images, outside, proto, setup, shell, tidy};

/// All checks and tests; or the tests of the crate that is named first, for which the rest goes to `cargo test`.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    if let Some((name, rest)) = arguments.split_first() {
        let name = name.trim_start_matches("ambit-");
        let package = format!("ambit-{name}");
        let tests = setup::Tests::of(name);
        tests.ensure()?;
        if tests.binaries {
            build_binaries()?;
        }
        if tests.outside {
            outside::build()?;
        }
        if package == "ambit-cluster-tests" {
            images::for_cluster()?;
        }
        return shell::run(
            &package,
            shell::cargo(&["test", "--package", &package]).args(rest),
        );
    }
    setup::Tests::all().ensure()?;
    tidy::run()?;
    shell::run(
        "formatting",
        &mut shell::cargo(&["fmt", "--all", "--check"]),
    )?;
    proto::generate(true)?;
    build_binaries()?;
    outside::build()?;
    images::for_cluster()?;
    shell::run(
        "build the tests",
        &mut shell::cargo(&["test", "--workspace", "--no-run", "--quiet"]),
    )?;
    // The tests wait more than they compute. The fuzz targets go first, in a directory of their own: cargo
    // would hold the tests back while the lints have the one they share.
    let beside = thread::spawn(|| {
        shell::run_beside("build the fuzz targets", &mut fuzz::build())?;
        shell::run_beside("lints", &mut lints())
    });
    let tests = shell::run(
        "tests",
        &mut shell::cargo(&["test", "--workspace", "--no-fail-fast"]),
    );
    let beside = beside.join().map_err(|_| anyhow!("a thread panicked"));
    tests?;
    beside??;
    fuzz::run(None)?;
    eprintln!("==> all checks passed");
    Ok(())
}

/// Formatting and lints.
pub(crate) fn check() -> Result<()> {
    shell::run(
        "formatting",
        &mut shell::cargo(&["fmt", "--all", "--check"]),
    )?;
    shell::run("lints", &mut lints())
}

/// The system tests drive the real binaries, which `cargo test` alone does not build for every
/// package.
fn build_binaries() -> Result<()> {
    shell::run(
        "build the binaries",
        &mut shell::cargo(&["build", "--workspace", "--bins"]),
    )
}

fn lints() -> Command {
    shell::cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ])
}
