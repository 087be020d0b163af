//! `cargo xtask demo`: builds the real binaries and shows the mesh at work in the lab.

use anyhow::Result;

use crate::{images, setup, shell};

pub(crate) fn run() -> Result<()> {
    setup::ensure(setup::Purpose::Demo)?;
    // Unoptimised builds take half the time.
    let mut cargo = shell::cargo(&["build", "--bins"]);
    for package in images::PACKAGES.iter().chain(&images::STATIC_PROGRAMS) {
        cargo.args(["--package", package]);
    }
    shell::run("build the programs", &mut cargo)?;
    let ambit = shell::target_dir().join("debug/ambit");
    shell::run(
        "the mesh at work",
        std::process::Command::new(ambit)
            .args(["lab", "demo"])
            .current_dir(shell::workspace_root()),
    )
}
