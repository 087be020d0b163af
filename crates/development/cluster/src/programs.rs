//! The external programs of a cluster: built from Go modules and one C file of ours; and the definitions of the
//! Gateway API, out of its Go module. Kept until their sources change.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use ambit_images::hex_digest;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Release of Kubernetes that a cluster runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum Kubernetes {
    /// Kubernetes 1.32, its last patch release available.
    #[value(name = "1.32")]
    V1_32,
    /// Kubernetes 1.33, its last patch release available.
    #[value(name = "1.33")]
    V1_33,
    /// Kubernetes 1.34, its last patch release available.
    #[default]
    #[value(name = "1.34")]
    V1_34,
    /// Kubernetes 1.35, its last patch release available.
    #[value(name = "1.35")]
    V1_35,
}

impl Kubernetes {
    /// Returns the version, as its module is tagged.
    fn version(self) -> &'static str {
        match self {
            Self::V1_32 => "v1.32.13",
            Self::V1_33 => "v1.33.13",
            Self::V1_34 => "v1.34.4",
            Self::V1_35 => "v1.35.4",
        }
    }

    /// Returns the minor version: 34.
    fn minor(self) -> &'static str {
        let mut parts = self.version().split('.');
        parts.nth(1).unwrap_or_default()
    }

    /// Returns the module file in `build/kube` with the release's dependencies, unless it is that of the default one.
    fn module_file(self) -> Option<String> {
        (self != Self::default()).then(|| format!("v1.{}.mod", self.minor()))
    }

    /// Returns the directory of programs in the cache: releases do not replace each other's.
    pub(crate) fn directory(self) -> String {
        match self.module_file() {
            None => "bin".to_owned(),
            Some(_) => format!("bin-1.{}", self.minor()),
        }
    }
}

/// The definitions of the Gateway API.
pub(crate) const GATEWAY_API: &str = "gateway-api";
/// Gateway API's conformance tests of meshes.
pub(crate) const CONFORMANCE: &str = "conformance";
/// Server of Kiali.
pub(crate) const KIALI: &str = "kiali";

/// Builds missing or outdated programs; `sources` is the repository's `build` directory.
pub(crate) fn ensure(sources: &Path, kubernetes: Kubernetes, bin: &Path) -> Result<()> {
    fs::create_dir_all(bin)?;
    let version = "k8s.io/component-base/version";
    let flags = format!(
        "-s -w -X {version}.gitVersion={} -X {version}.gitMajor=1 -X {version}.gitMinor={} \
         -X {version}.gitTreeState=clean",
        kubernetes.version(),
        kubernetes.minor()
    );
    let mut command = vec!["build".to_owned()];
    if let Some(file) = kubernetes.module_file() {
        command.push(format!("-modfile={file}"));
    }
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    go("kube", &command, &flags, ".", sources, bin)?;
    let flannel = "github.com/containernetworking/plugins/plugins/meta/flannel";
    for (name, flags, package) in [
        ("etcd", "-s -w", "."),
        ("coredns", "-s -w", "."),
        ("flanneld", "-s -w", "."),
        ("flannel", "-s -w", flannel),
        ("kube-network-policies", "-s -w", "."),
    ] {
        go(name, &["build"], flags, package, sources, bin)?;
    }
    build("pause", &sources.join("pause"), bin, "", |output| {
        let mut cc = Command::new("cc");
        cc.args(["-Os", "-static", "-s", "-o"])
            .arg(output)
            .arg("pause.c")
            .current_dir(sources.join("pause"));
        compile("pause", &mut cc)
    })?;
    let source = sources.join(GATEWAY_API);
    build(GATEWAY_API, &source, bin, "", |output| {
        definitions(&source, output)
    })
}

/// Builds the conformance tests, if they are missing or outdated; gives the program.
pub(crate) fn ensure_conformance(sources: &Path, bin: &Path) -> Result<PathBuf> {
    fs::create_dir_all(bin)?;
    go(CONFORMANCE, &["test", "-c"], "-s -w", ".", sources, bin)?;
    Ok(bin.join(CONFORMANCE))
}

/// Builds Kiali's server, if it is missing or outdated; gives the program.
pub(crate) fn ensure_kiali(sources: &Path, bin: &Path) -> Result<PathBuf> {
    fs::create_dir_all(bin)?;
    let package = "github.com/kiali/kiali";
    go(KIALI, &["build"], "-s -w", package, sources, bin)?;
    Ok(bin.join(KIALI))
}

fn go(
    name: &str,
    command: &[&str],
    flags: &str,
    package: &str,
    sources: &Path,
    bin: &Path,
) -> Result<()> {
    let source = sources.join(name);
    build(name, &source, bin, flags, |output| {
        let mut go = Command::new("nice");
        go.arg("go")
            .args(command)
            .args(["-trimpath", "-buildvcs=false", "-ldflags"])
            .arg(flags)
            .arg("-o")
            .arg(output)
            .arg(package)
            .current_dir(&source)
            .env("CGO_ENABLED", "0");
        compile(name, &mut go)
    })
}

fn compile(name: &str, compiler: &mut Command) -> Result<()> {
    let status = compiler
        .status()
        .with_context(|| format!("cannot build {name}: is Go (1.24 or later) installed?"))?;
    ensure!(status.success(), "building {name} failed ({status})");
    Ok(())
}

/// Writes the definitions of the standard channel, which are files of the module, as one manifest.
fn definitions(source: &Path, output: &Path) -> Result<()> {
    let module = "sigs.k8s.io/gateway-api";
    let listed = Command::new("go")
        .args(["mod", "download", "-json", module])
        .current_dir(source)
        .output()
        .context("cannot download the Gateway API: is Go (1.24 or later) installed?")?;
    ensure!(
        listed.status.success(),
        "downloading {module} failed: {}",
        String::from_utf8_lossy(&listed.stderr)
    );
    let listed: Value = serde_json::from_slice(&listed.stdout)?;
    let directory = listed.get("Dir").and_then(Value::as_str);
    let directory = directory.with_context(|| format!("go names no directory of {module}"))?;
    let mut all = String::new();
    for file in files(&Path::new(directory).join("config/crd/standard"))? {
        let text = fs::read_to_string(file)?;
        // Beside them is a policy that forbids older ones, which tests do install.
        if text.contains("\nkind: CustomResourceDefinition\n") {
            all += &format!("---\n{text}");
        }
    }
    ensure!(!all.is_empty(), "no definitions are in {directory}");
    Ok(fs::write(output, all)?)
}

fn build(
    name: &str,
    source: &Path,
    bin: &Path,
    flags: &str,
    make: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    let stamp = bin.join(format!("{name}.stamp"));
    let expected = fingerprint(source, flags)?;
    if fs::read_to_string(&stamp).is_ok_and(|found| found == expected) {
        return Ok(());
    }
    let start = Instant::now();
    eprintln!("==> build {name}: from nothing this takes minutes, and once only");
    let output = bin.join(name);
    make(&bin.join(format!("{name}.new")))?;
    // A running cluster may have the old one open.
    fs::rename(bin.join(format!("{name}.new")), output)?;
    fs::write(stamp, expected)?;
    eprintln!("    {name}: {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// A short hash of a program's sources.
fn fingerprint(source: &Path, flags: &str) -> Result<String> {
    let mut all = flags.as_bytes().to_vec();
    for file in files(source)? {
        all.extend(fs::read(file)?);
    }
    Ok(hex_digest(&all))
}

/// The files of a directory, sorted.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = fs::read_dir(directory)
        .with_context(|| format!("no files in {}", directory.display()))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    files.sort();
    Ok(files)
}
