//! `cargo xtask demo`: builds the real binaries and shows the mesh at work in the lab.

use anyhow::Result;

use crate::{setup, shell};

/// Packages of the programs that a lab runs.
const PACKAGES: [&str; 6] = [
    "ambit-agent",
    "ambit-cli",
    "ambit-cni",
    "ambit-control",
    "ambit-node-proxy",
    "ambit-waypoint",
];

pub(crate) fn run() -> Result<()> {
    setup::ensure(setup::Purpose::Demo)?;
    // Unoptimised: half the time to build.
    let mut cargo = shell::cargo(&["build", "--bins"]);
    for package in PACKAGES {
        cargo.args(["--package", package]);
    }
    shell::run("build the programs", &mut cargo)?;
    let ambit = shell::target_dir().join("debug/ambit");
    shell::run(
        "the mesh at work",
        std::process::Command::new(ambit)
            .args(["lab", "demo"])
            .current_dir(shell::root()),
    )
}
