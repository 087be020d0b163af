//! `cargo xtask cluster ...`: a real Kubernetes on this machine, for tests and development.

use std::process::Command;

use anyhow::{Result, bail, ensure};

use crate::{images, istio, outside, setup, shell, test};

/// Environment variable with the release of Kubernetes that test clusters run.
const KUBERNETES_VARIABLE: &str = "AMBIT_CLUSTER_KUBERNETES";

/// Releases of Kubernetes on which `cluster test` runs by default; `cargo xtask test` uses one of them.
const KUBERNETES_RELEASES: &str = "1.32,1.33,1.34,1.35";

/// Arguments that select the tests for each release: labels, policies, probes, waypoints and more on a shared cluster;
/// then outages and rollouts, on separate clusters.
const TEST_TARGETS: [&[&str]; 2] = [&["--test", "cluster"], &["--test", "faults", "upgrades"]];

/// Arguments that select the tests of primary CNIs and layouts of nodes, on separate clusters.
const PLATFORM_TEST_ARGS: [&str; 2] = ["--test", "platforms"];

/// Arguments that select the tests that begin with an installation of Istio.
const ISTIO_TEST_ARGS: [&str; 2] = ["--test", "istio"];

/// Passes the arguments to `ambit-cluster`; for `load` without archives, first builds Ambit's images from the source
/// tree. `test` runs the cluster tests on several releases of Kubernetes.
pub(crate) fn run(args: &[String]) -> Result<()> {
    if let Some(("test", options)) = args.split_first().map(|(a, b)| (a.as_str(), b)) {
        return test(options);
    }
    setup::ensure(setup::Purpose::Cluster)?;
    let mut args = args.to_vec();
    if args.iter().any(|arg| arg.contains("cilium")) {
        setup::ensure(setup::Purpose::Cilium)?;
    }
    if args.iter().any(|arg| arg == "load") && !args.iter().any(|arg| arg.ends_with(".tar")) {
        let archives = images::cluster_images(&images::build_debug()?)?;
        args.extend(archives.iter().map(|path| path.display().to_string()));
    }
    let status = command()?.args(&args).status()?;
    if !status.success() {
        // `ambit-cluster` has printed the reason.
        std::process::exit(status.code().unwrap_or(1));
    }
    Ok(())
}

/// Runs the cluster tests on each release that `--versions` lists, and prints the failed releases; or the tests on all
/// platforms, or the tests of migrations from Istio.
fn test(options: &[String]) -> Result<()> {
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let releases = match options[..] {
        [] => KUBERNETES_RELEASES,
        ["--versions", releases] => releases,
        ["--platforms"] => {
            setup::ensure(setup::Purpose::Cilium)?;
            return test::test_crate("cluster-tests", &PLATFORM_TEST_ARGS.map(str::to_owned));
        }
        ["--istio"] => {
            istio::build()?;
            return test::test_crate("cluster-tests", &ISTIO_TEST_ARGS.map(str::to_owned));
        }
        _ => {
            bail!(
                "usage: cargo xtask cluster test [--versions {KUBERNETES_RELEASES} | --platforms | --istio]"
            )
        }
    };
    let known: Vec<_> = KUBERNETES_RELEASES.split(',').collect();
    for release in releases.split(',') {
        ensure!(
            known.contains(&release),
            "--versions: there is no release {release:?} but {KUBERNETES_RELEASES}"
        );
    }
    test::prepare("cluster-tests")?;
    let mut failed = Vec::new();
    for release in releases.split(',') {
        for tests in TEST_TARGETS {
            let what = format!("Kubernetes {release}: {}", tests.join(" "));
            let mut command = test::command("cluster-tests");
            command.args(tests).env(KUBERNETES_VARIABLE, release);
            if let Err(error) = shell::run(&what, &mut command) {
                failed.push(format!("{error:#}"));
            }
        }
    }
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

/// Builds `ambit-cluster` and returns a command that runs it.
pub(crate) fn command() -> Result<Command> {
    let build = shell::cargo(&["build", "--quiet", "--package", "ambit-cluster"]).status()?;
    anyhow::ensure!(build.success(), "ambit-cluster does not build");
    Ok(outside::cluster_command())
}
