//! `cargo xtask demo`: builds the real binaries and shows the mesh at work in the lab.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::{images, setup, shell};

/// Program of the demonstration's last part.
const WAYPOINT_PROGRAM: &str = "ambit-waypoint";

/// Builds the programs and runs the demonstration. The waypoint is built while the mesh is shown at layer 4, since its
/// Wasm compiler takes about a fifth of the build.
pub(crate) fn run() -> Result<()> {
    setup::ensure(setup::Purpose::Demo)?;
    let layer_4 = ambit_images::program_names()
        .chain(["ambit-cni"])
        .filter(|name| *name != WAYPOINT_PROGRAM);
    shell::run("build the programs of layer 4", &mut build(layer_4))?;
    let ambit = shell::target_dir().join("demo/ambit");
    eprintln!("==> the mesh at work");
    let mut demo = Command::new(ambit)
        .args(["lab", "demo", "--await-waypoint"])
        .current_dir(shell::workspace_root())
        .stdin(Stdio::piped())
        .spawn()
        .context("cannot start the demonstration")?;
    let waypoint = shell::run(
        "build the waypoint",
        shell::nice(&build([WAYPOINT_PROGRAM]), 19).arg("--quiet"),
    );
    // The end of its standard input lets the demonstration go on.
    drop(demo.stdin.take());
    let status = demo.wait().context("the demonstration is lost")?;
    waypoint?;
    ensure!(status.success(), "the demonstration failed ({status})");
    Ok(())
}

/// Returns a command that builds these programs. Whatever the programs, the same packages are selected: dependencies have
/// the features of all, so that no later build repeats one.
fn build(programs: impl IntoIterator<Item = &'static str>) -> Command {
    let mut cargo = shell::cargo(&["build", "--profile", "demo"]);
    for package in images::PACKAGES.iter().chain(&images::STATIC_PROGRAMS) {
        cargo.args(["--package", package]);
    }
    for program in programs {
        cargo.args(["--bin", program]);
    }
    cargo
}
