//! `cargo xtask bench`: the same traffic without the mesh and through it, side by side, as ratios.

use std::process::Command;

use anyhow::Result;

use crate::{setup, shell, static_binary};

pub(crate) fn run(name: Option<&str>) -> Result<()> {
    setup::ensure(setup::Purpose::Bench)?;
    shell::run(
        "build the binaries",
        &mut shell::cargo(&["build", "--release", "--workspace", "--bins"]),
    )?;
    // As it is in its image.
    static_binary::build("ambit-node-proxy", None)?;
    let mut bench = Command::new(shell::target_dir().join("release/ambit-bench"));
    bench.args(name).current_dir(shell::root());
    shell::run("benchmark", &mut bench)
}
