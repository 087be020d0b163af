//! `cargo xtask test` and `check`: all checks and tests, in the order that fails fastest.

mod durations;
mod lane;
mod suite;

use std::process::Command;

use anyhow::Result;

use crate::{bpf, fuzz, images, outside, setup, shell, tidy, web};
use lane::{Lane, Priority};
use suite::SuiteKind;

/// Duration in seconds of each fuzz target's run, besides running its corpus.
const FUZZ_SECONDS: u32 = 5;

/// Runs all checks and tests, or those of the crate that the first argument names; the other arguments go to `cargo
/// test`.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    if let Some((name, rest)) = arguments.split_first() {
        return test_crate(name, rest);
    }
    setup::TestRequirements::all().ensure()?;
    tidy::run()?;
    shell::run(
        "formatting",
        &mut shell::cargo(&["fmt", "--all", "--check"]),
    )?;
    bpf::build(true)?;
    web::build(true)?;
    let suites = suite::build()?;
    outside::build()?;
    let mut workflows = Command::new(outside::build_actionlint()?);
    workflows.current_dir(shell::workspace_root());
    // The program that was just built: this process has no file any more, since the build has replaced it.
    let mut book = Command::new(shell::target_dir().join("debug/xtask"));
    book.arg("book").current_dir(shell::workspace_root());
    images::cluster_images(&shell::target_dir().join("debug"))?;
    // Before all lanes: the clusters' one is the last to end, and would begin with minutes of compiling beside the others.
    outside::build_cluster_programs()?;
    let (clusters, others): (Vec<_>, Vec<_>) = suites
        .into_iter()
        .partition(|suite| suite.kind == SuiteKind::Cluster);
    let (labs, units): (Vec<_>, Vec<_>) = others
        .into_iter()
        .partition(|suite| suite.kind == SuiteKind::Lab);
    fuzz::build()?;
    // Suites on clusters and in labs mostly wait, so they run in parallel with suites that compute and with fuzzing, which
    // have a lower priority.
    let mut fuzzing = Lane::suite_lane("fuzz", Priority::Low, Vec::new());
    for (name, command) in fuzz::fuzz_commands(FUZZ_SECONDS)? {
        fuzzing = fuzzing.command(&format!("fuzz {name}"), command);
    }
    lane::run(vec![
        Lane::suite_lane("clusters", Priority::Normal, clusters).max_parallel(2),
        Lane::suite_lane("labs", Priority::Normal, labs),
        Lane::suite_lane("units", Priority::Low, units)
            .command("lints of workflows", workflows)
            .command("the book", book)
            .command(
                "examples in documentation",
                shell::linting_cargo(&["test", "--doc", "--quiet", suite::SPIRE_FEATURE]),
            ),
        fuzzing,
    ])?;
    eprintln!("==> all checks passed");
    Ok(())
}

/// Runs the tests of the crate `name`; `rest` goes to `cargo test`.
pub(crate) fn test_crate(name: &str, rest: &[String]) -> Result<()> {
    let name = name.trim_start_matches("ambit-");
    prepare(name)?;
    let mut command = command(name);
    shell::run(&format!("ambit-{name}"), command.args(rest))
}

/// Installs tools and builds programs that the tests of the crate `name` (without `ambit-`) need.
pub(crate) fn prepare(name: &str) -> Result<()> {
    let tests = setup::TestRequirements::for_crate(name);
    tests.ensure()?;
    if tests.binaries {
        images::build_debug()?;
    }
    if tests.outside {
        outside::build()?;
        web::install()?;
    }
    if name == "install" {
        outside::build_helm()?;
    }
    if name == "cluster-tests" {
        images::cluster_images(&shell::target_dir().join("debug"))?;
    }
    Ok(())
}

/// Runs the tests with real SPIRE, which `test` does not run, since building SPIRE takes minutes longer than the tests.
pub(crate) fn spire() -> Result<()> {
    setup::ensure(setup::Purpose::Spire)?;
    prepare("node-proxy")?;
    outside::build_spire()?;
    let mut tests = command("node-proxy");
    tests.args(["--features", "spire", "--test", "mesh", "--", "spire::"]);
    shell::run("tests with SPIRE", &mut tests)
}

/// Returns a command that runs the tests of the crate `name` (without `ambit-`).
pub(crate) fn command(name: &str) -> Command {
    shell::cargo(&["test", "--package", &format!("ambit-{name}")])
}

/// Checks formatting and lints.
pub(crate) fn check() -> Result<()> {
    shell::run(
        "formatting",
        &mut shell::cargo(&["fmt", "--all", "--check"]),
    )?;
    shell::run("lints", &mut clippy_command())
}

fn clippy_command() -> Command {
    shell::cargo(&[
        "clippy",
        "--all-targets",
        suite::SPIRE_FEATURE,
        "--",
        "-D",
        "warnings",
    ])
}
