//! `cargo xtask images`: Ambit's container images as OCI archives, without a daemon.

use std::path::{Path, PathBuf};

use ambit_images::{Binaries, Naming};
use anyhow::{Context, Result, bail};

use crate::{plugin, setup, shell, static_binary};

/// Packages whose programs go into images beside the node proxy and the plugin, which are static.
pub(crate) const PACKAGES: [&str; 4] = [
    "ambit-agent",
    "ambit-control",
    "ambit-waypoint",
    "ambit-cli",
];

/// Packages of the node proxy and the plugin.
pub(crate) const STATIC: [&str; 2] = ["ambit-node-proxy", "ambit-cni"];

/// Options of the user.
struct Wanted {
    release: bool,
    out: PathBuf,
    hub: String,
    tag: String,
}

/// Builds the binaries and writes the images.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let mut wanted = Wanted {
        release: false,
        out: shell::target_dir().join("images"),
        hub: "ambit".to_owned(),
        tag: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} wants a value"));
        match arg.as_str() {
            "--release" => wanted.release = true,
            "--out" => wanted.out = Path::new(value()?).to_path_buf(),
            "--hub" => wanted.hub.clone_from(value()?),
            "--tag" => wanted.tag.clone_from(value()?),
            other => bail!("unknown argument {other}; there are --release, --out, --hub and --tag"),
        }
    }
    setup::demand_for_images()?;
    let directory = if wanted.release { release()? } else { debug()? };
    for archive in write(&directory, &wanted.out, &wanted.hub, &wanted.tag)? {
        eprintln!("    {}", archive.display());
    }
    Ok(())
}

/// Images of programs that are there, for the cluster of tests and development: named as it expects them.
pub(crate) fn for_cluster(programs: &Path) -> Result<Vec<PathBuf>> {
    in_cluster(programs, "cluster/ambit")
}

/// The images for the cluster of benchmarks, of the programs that are measured.
pub(crate) fn for_benchmarks(programs: &Path) -> Result<Vec<PathBuf>> {
    in_cluster(programs, "cluster/ambit-release")
}

fn in_cluster(binaries: &Path, out: &str) -> Result<Vec<PathBuf>> {
    let out = shell::target_dir().join(out);
    write(binaries, &out, "kube.local/ambit", "dev")
}

/// Builds what goes into images for use, beside whatever else was built; gives the directory.
fn release() -> Result<PathBuf> {
    let target = static_binary::target_dir();
    let mut cargo = shell::cargo(&["build", "--locked", "--release", "--bins"]);
    cargo.arg("--target-dir").arg(&target);
    for package in PACKAGES {
        cargo.args(["--package", package]);
    }
    shell::run("build the binaries", &mut cargo)?;
    static_binary::build("ambit-node-proxy")?;
    Ok(target.join("release"))
}

/// Builds the programs quickly; gives the directory.
pub(crate) fn debug() -> Result<PathBuf> {
    let mut cargo = shell::cargo(&["build", "--bins"]);
    shell::run("build the binaries", &mut cargo)?;
    Ok(shell::target_dir().join("debug"))
}

fn write(binaries: &Path, out: &Path, hub: &str, tag: &str) -> Result<Vec<PathBuf>> {
    let binaries = Binaries {
        directory: binaries,
        plugin: &plugin::build()?,
    };
    ambit_images::write(&binaries, &Naming { hub, tag }, out).context("cannot write the images")
}
