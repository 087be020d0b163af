//! `cargo xtask test` and `check`: everything that must hold, in the order that fails fastest.

mod durations;
mod lane;
mod suite;

use std::process::Command;

use anyhow::Result;

use crate::{fuzz, images, outside, proto, setup, shell, tidy};
use lane::{Lane, Priority};
use suite::Kind;

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
    let suites = suite::build()?;
    let (clusters, others): (Vec<_>, Vec<_>) = suites
        .into_iter()
        .partition(|suite| suite.kind == Kind::Cluster);
    let (labs, units): (Vec<_>, Vec<_>) = others
        .into_iter()
        .partition(|suite| suite.kind == Kind::Lab);
    // Suites on clusters and in labs mostly wait: both run at once, and what computes runs beside them, at a lower
    // priority. The fuzz targets are built in a directory of their own, and the lints last, since cargo locks the one
    // that they share.
    let durations = lane::run(vec![
        Lane::suites("clusters", Priority::Normal, clusters),
        Lane::suites("labs", Priority::Normal, labs),
        Lane::suites("units", Priority::Low, units)
            .command("build the fuzz targets", fuzz::build())
            .command("lints", lints())
            .command(
                "examples in documentation",
                shell::cargo(&["test", "--workspace", "--doc", "--quiet"]),
            ),
    ])?;
    fuzz::run(None)?;
    durations.print();
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
