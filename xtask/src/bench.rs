//! `cargo xtask bench`: the same traffic without the mesh and through it, side by side, as ratios.

use anyhow::Result;

use crate::{setup, shell};

pub(crate) fn run(name: Option<&str>) -> Result<()> {
    setup::ensure(setup::Purpose::Bench)?;
    shell::run(
        "build the binaries",
        &mut shell::cargo(&["build", "--release", "--bins"]),
    )?;
    let mut bench = shell::cargo(&[
        "run",
        "--release",
        "--quiet",
        "--package",
        "ambit-bench",
        "--",
    ]);
    bench.args(name);
    shell::run("benchmark", &mut bench)
}
