//! External programs of a cluster, built from Go modules and a C file, and the CRDs of the Gateway
//! API from its Go module. They are rebuilt when their sources change.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use ambit_images::hex_digest;
use anyhow::{Context, Result, ensure};

use crate::{
    module_files::{GATEWAY_API, files},
    options::PrimaryCni,
    primary_cni::Program,
    releases::Kubernetes,
};

/// Flag of `go build` that omits debugging information and inlining: with a lazier garbage collector of the compiler,
/// a build takes two thirds of the processor time, which is more than the slower programs need in a run of the tests.
const COMPILER_FLAGS: &str = "-gcflags=all=-dwarf=false -l";

/// Name of the program of the Gateway API's conformance tests for meshes.
pub(crate) const CONFORMANCE_PROGRAM: &str = "conformance";
/// Name of Kiali's server program.
pub(crate) const KIALI_PROGRAM: &str = "kiali";

/// Builds the cluster's missing or outdated programs; `sources` is the repository's `build` directory.
pub(crate) fn build_outdated(
    sources: &Path,
    kubernetes: Kubernetes,
    primary_cni: PrimaryCni,
    bin: &Path,
) -> Result<()> {
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
    let own = |name| Program::new(name, name, ".");
    build_go(&own("kube"), &command, &flags, sources, bin)?;
    for program in [own("etcd"), own("coredns"), own("kube-network-policies")]
        .iter()
        .chain(primary_cni.go_programs())
    {
        build_go(program, &["build"], "-s -w", sources, bin)?;
    }
    build_if_outdated("pause", &sources.join("pause"), bin, "", |output| {
        let mut cc = Command::new("cc");
        cc.args(["-Os", "-static", "-s", "-o"])
            .arg(output)
            .arg("pause.c")
            .current_dir(sources.join("pause"));
        compile("pause", &mut cc)
    })?;
    for definitions in [GATEWAY_API].iter().chain(primary_cni.crds()) {
        let source = sources.join(definitions.source);
        build_if_outdated(definitions.manifest, &source, bin, "", |output| {
            definitions.write(&source, output)
        })?;
    }
    if let Some(files) = primary_cni.agent_files() {
        let source = sources.join(files.source);
        build_if_outdated(files.archive, &source, bin, "", |output| {
            files.write(&source, output)
        })?;
    }
    Ok(())
}

/// Builds the conformance tests if they are missing or outdated; returns the program's path.
pub(crate) fn ensure_conformance(sources: &Path, bin: &Path) -> Result<PathBuf> {
    fs::create_dir_all(bin)?;
    let tests = Program::new(CONFORMANCE_PROGRAM, CONFORMANCE_PROGRAM, ".");
    build_go(&tests, &["test", "-c"], "-s -w", sources, bin)?;
    Ok(bin.join(CONFORMANCE_PROGRAM))
}

/// Builds Kiali's server if it is missing or outdated; returns the program's path.
pub(crate) fn ensure_kiali(sources: &Path, bin: &Path) -> Result<PathBuf> {
    fs::create_dir_all(bin)?;
    let server = Program::new(KIALI_PROGRAM, KIALI_PROGRAM, "github.com/kiali/kiali");
    build_go(&server, &["build"], "-s -w", sources, bin)?;
    Ok(bin.join(KIALI_PROGRAM))
}

fn build_go(
    program: &Program,
    command: &[&str],
    flags: &str,
    sources: &Path,
    bin: &Path,
) -> Result<()> {
    let name = program.name;
    let source = sources.join(program.source);
    build_if_outdated(name, &source, bin, flags, |output| {
        let mut go = Command::new("nice");
        go.arg("go")
            .args(command)
            .args(["-trimpath", "-buildvcs=false", COMPILER_FLAGS, "-ldflags"])
            .arg(flags)
            .arg("-o")
            .arg(output)
            .arg(program.package)
            .current_dir(&source)
            .env("CGO_ENABLED", "0")
            .env("GOGC", "400");
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

fn build_if_outdated(
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
    // A running cluster may have the old file open.
    fs::rename(bin.join(format!("{name}.new")), output)?;
    fs::write(stamp, expected)?;
    eprintln!("    {name}: {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// Returns a short hash of a program's sources and build flags.
fn fingerprint(source: &Path, flags: &str) -> Result<String> {
    let mut all = flags.as_bytes().to_vec();
    for file in files(source)? {
        all.extend(fs::read(file)?);
    }
    Ok(hex_digest(&all))
}
