//! `cargo xtask demo`: builds the real binaries and shows the mesh at work in the lab.

use anyhow::Result;

use crate::{setup, shell};

pub(crate) fn run() -> Result<()> {
    setup::ensure(setup::Purpose::Demo)?;
    // Unoptimised: half the time to build, and the tests use the same artefacts.
    shell::run(
        "build the binaries",
        &mut shell::cargo(&["build", "--workspace", "--bins"]),
    )?;
    let ambit = shell::target_dir().join("debug/ambit");
    shell::run(
        "the mesh at work",
        std::process::Command::new(ambit)
            .args(["lab", "demo"])
            .current_dir(shell::root()),
    )
}
