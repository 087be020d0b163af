//! The external programs of a cluster: built from Go modules and one C file of ours, kept until their
//! sources change.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use ambit_images::hex_digest;
use anyhow::{Context, Result, ensure};

const KUBERNETES: &str = "v1.34.4";

/// Builds what is missing or outdated; `sources` is the repository's `build` directory.
pub(crate) fn ensure(sources: &Path, bin: &Path) -> Result<()> {
    fs::create_dir_all(bin)?;
    let version = "k8s.io/component-base/version";
    let kube = format!(
        "-s -w -X {version}.gitVersion={KUBERNETES} -X {version}.gitMajor=1 \
         -X {version}.gitMinor=34 -X {version}.gitTreeState=clean"
    );
    let flannel = "github.com/containernetworking/plugins/plugins/meta/flannel";
    for (name, flags, package) in [
        ("kube", kube.as_str(), "."),
        ("etcd", "-s -w", "."),
        ("coredns", "-s -w", "."),
        ("flanneld", "-s -w", "."),
        ("flannel", "-s -w", flannel),
        ("kube-network-policies", "-s -w", "."),
    ] {
        let source = sources.join(name);
        build(name, &source, bin, flags, |output| {
            let mut go = std::process::Command::new("nice");
            go.args(["go", "build", "-trimpath", "-buildvcs=false", "-ldflags"])
                .arg(flags)
                .arg("-o")
                .arg(output)
                .arg(package)
                .current_dir(&source)
                .env("CGO_ENABLED", "0");
            go
        })?;
    }
    build("pause", &sources.join("pause"), bin, "", |output| {
        let mut cc = std::process::Command::new("cc");
        cc.args(["-Os", "-static", "-s", "-o"])
            .arg(output)
            .arg("pause.c")
            .current_dir(sources.join("pause"));
        cc
    })
}

fn build(
    name: &str,
    source: &Path,
    bin: &Path,
    flags: &str,
    command: impl FnOnce(&Path) -> std::process::Command,
) -> Result<()> {
    let stamp = bin.join(format!("{name}.stamp"));
    let wanted = fingerprint(source, flags)?;
    if fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
        return Ok(());
    }
    let start = Instant::now();
    eprintln!("==> build {name}: from nothing this takes minutes, and once only");
    let output = bin.join(name);
    let status = command(&bin.join(format!("{name}.new")))
        .status()
        .with_context(|| format!("cannot build {name}: is Go (1.24 or later) installed?"))?;
    ensure!(status.success(), "building {name} failed ({status})");
    // A running cluster may have the old one open.
    fs::rename(bin.join(format!("{name}.new")), output)?;
    fs::write(stamp, wanted)?;
    eprintln!("    {name}: {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// A short hash of a program's sources.
fn fingerprint(source: &Path, flags: &str) -> Result<String> {
    let mut files: Vec<PathBuf> = fs::read_dir(source)
        .with_context(|| format!("no sources in {}", source.display()))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    files.sort();
    let mut all = flags.as_bytes().to_vec();
    for file in files {
        all.extend(fs::read(file)?);
    }
    Ok(hex_digest(&all))
}
