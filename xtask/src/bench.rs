//! `cargo xtask bench`: the same traffic without the mesh and through it, side by side, as ratios.

use std::process::Command;

use anyhow::Result;

use crate::{images, setup, shell, static_binary};

/// Runs what `args` name: a part, and of `cluster` maybe one scenario.
pub(crate) fn run(args: &[String]) -> Result<()> {
    setup::ensure(setup::Purpose::Bench)?;
    shell::run(
        "build the binaries",
        &mut shell::cargo(&["build", "--release", "--workspace", "--bins"]),
    )?;
    // As it is in its image.
    static_binary::build_for_release("ambit-node-proxy")?;
    let mut bench = Command::new(shell::target_dir().join("release/ambit-bench"));
    bench.args(args).current_dir(shell::root());
    if args.first().is_none_or(|part| part == "cluster") {
        setup::ensure(setup::Purpose::Cluster)?;
        bench.args(images::for_benchmarks()?);
    }
    shell::run("benchmark", &mut bench)
}
