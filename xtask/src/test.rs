//! `cargo xtask test` and `check`: everything that must hold, in the order that fails fastest.

use anyhow::Result;

use crate::{fuzz, images, plugin, proto, setup, shell, tidy};

/// All checks and tests; or the tests of one crate.
pub(crate) fn run(crate_name: Option<&str>) -> Result<()> {
    if let Some(name) = crate_name {
        let name = name.trim_start_matches("ambit-");
        let package = format!("ambit-{name}");
        let tests = setup::Tests::of(name);
        tests.ensure()?;
        if tests.binaries {
            build_binaries()?;
        }
        if package == "ambit-cluster-tests" {
            images::for_cluster()?;
        }
        return shell::run(
            &package,
            &mut shell::cargo(&["test", "--package", &package]),
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
    images::for_cluster()?;
    shell::run(
        "tests",
        &mut shell::cargo(&["test", "--workspace", "--no-fail-fast"]),
    )?;
    plugin::build()?;
    lints()?;
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
    lints()
}

/// The system tests drive the real binaries, which `cargo test` alone does not build for every
/// package.
fn build_binaries() -> Result<()> {
    shell::run(
        "build the binaries",
        &mut shell::cargo(&["build", "--workspace", "--bins"]),
    )
}

fn lints() -> Result<()> {
    let mut cargo = shell::cargo(&["clippy", "--workspace", "--all-targets"]);
    cargo.args(["--", "-D", "warnings"]);
    shell::run("lints", &mut cargo)
}
