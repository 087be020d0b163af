//! `cargo xtask images`: Ambit's container images as OCI archives, without a daemon.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result, bail, ensure};

use crate::{cluster, plugin, setup, shell, static_binary};

/// What goes into images beside the plugin.
const PACKAGES: [&str; 4] = [
    "ambit-agent",
    "ambit-node-proxy",
    "ambit-control",
    "ambit-cli",
];

/// What the user asked for.
struct Wanted {
    release: bool,
    out: PathBuf,
    hub: String,
    tag: String,
}

/// Builds the binaries and writes the images.
pub(crate) fn run(args: &[String]) -> Result<()> {
    setup::ensure(setup::Purpose::Cluster)?;
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
    for archive in make(&wanted)? {
        eprintln!("    {}", archive.display());
    }
    Ok(())
}

/// The images for the cluster of tests and development: quickly built, named as it expects them.
pub(crate) fn for_cluster() -> Result<Vec<PathBuf>> {
    in_cluster(false, "cluster/ambit")
}

/// The images for the cluster of benchmarks.
pub(crate) fn for_benchmarks() -> Result<Vec<PathBuf>> {
    in_cluster(true, "cluster/ambit-release")
}

fn in_cluster(release: bool, out: &str) -> Result<Vec<PathBuf>> {
    make(&Wanted {
        release,
        out: shell::target_dir().join(out),
        hub: "kube.local/ambit".to_owned(),
        tag: "dev".to_owned(),
    })
}

fn make(wanted: &Wanted) -> Result<Vec<PathBuf>> {
    let mut cargo = shell::cargo(&["build", "--bins"]);
    let profile = if wanted.release {
        cargo.arg("--release");
        for package in PACKAGES {
            cargo.args(["--package", package]);
        }
        "release"
    } else {
        // As the tests build them: other features would mean other builds of the libraries.
        cargo.arg("--workspace");
        "debug"
    };
    shell::run("build the binaries", &mut cargo)?;
    if wanted.release {
        static_binary::build_for_release("ambit-node-proxy")?;
    }
    let output = cluster::command()?
        .arg("images")
        .arg("--bin")
        .arg(shell::target_dir().join(profile))
        .arg("--plugin")
        .arg(plugin::build()?)
        .arg("--out")
        .arg(&wanted.out)
        .args(["--hub", &wanted.hub, "--tag", &wanted.tag])
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "the images cannot be written");
    Ok(String::from_utf8(output.stdout)?
        .lines()
        .map(PathBuf::from)
        .collect())
}
