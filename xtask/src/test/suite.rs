//! Builds the test programs of the workspace, and classifies them by the resource that limits them.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::{setup, shell};

/// Suites that take minutes and build third-party programs, so that only `cargo xtask cluster test` runs them.
const SEPARATE_SUITES: [&str; 2] = ["cluster-tests::istio", "cluster-tests::platforms"];

/// Feature of cargo with which the tests with real SPIRE are compiled. `cargo xtask spire` runs them.
pub(super) const SPIRE_FEATURE: &str = "--features=ambit-node-proxy/spire";

/// Suite that [`SPIRE_FEATURE`] adds tests to.
const SUITE_WITH_SPIRE: &str = "node-proxy::mesh";

/// Test program of a crate, which cargo has built.
#[derive(Debug)]
pub(super) struct Suite {
    /// Crate and target, for instance `system-tests::attacks`.
    pub(super) name: String,
    pub(super) kind: SuiteKind,
    program: PathBuf,
    /// Directory of the crate, in which cargo starts test programs.
    directory: PathBuf,
}

/// Resource that dominates the duration of a suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SuiteKind {
    /// A real Kubernetes cluster, for which the suite mostly waits.
    Cluster,
    /// Network namespaces, links and programs of other crates, for which the suite mostly waits.
    Lab,
    /// The CPU of this machine: the suite mostly computes.
    Unit,
}

impl SuiteKind {
    /// Returns the kind of the suites of a crate, whose name is without `ambit-`.
    fn of(package: &str) -> Self {
        let tests = setup::TestRequirements::for_crate(package);
        match package {
            "cluster-tests" => Self::Cluster,
            _ if tests.root || tests.binaries => Self::Lab,
            _ => Self::Unit,
        }
    }
}

/// Fields that are read from a line of `cargo --message-format=json`.
#[derive(Deserialize)]
struct Message {
    reason: String,
    #[serde(default)]
    manifest_path: PathBuf,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Builds the test programs of all crates and the programs, all with lints, and returns all suites except
/// [`SEPARATE_SUITES`]. In one build, so that nothing is compiled twice, tests and programs have the same features of
/// their dependencies: see `tidy`'s `test_features`.
///
/// # Errors
///
/// Fails if something does not compile or violates a lint, or cargo reports no test program.
pub(super) fn build() -> Result<Vec<Suite>> {
    eprintln!("==> build the tests and the programs");
    let start = Instant::now();
    let mut cargo = shell::linting_cargo(&[
        "build",
        "--tests",
        "--examples",
        "--bins",
        "--quiet",
        SPIRE_FEATURE,
        "--message-format=json-render-diagnostics",
    ]);
    let mut child = cargo
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start cargo")?;
    let output = child.stdout.take().context("cargo has no output")?;
    let mut suites = Vec::new();
    for line in BufReader::new(output).lines() {
        let line = line?;
        let message = serde_json::from_str(&line)
            .with_context(|| format!("cargo wrote a line that is not understood: {line}"))?;
        let suite = Suite::from_message(message);
        suites.extend(suite.filter(|suite| !SEPARATE_SUITES.contains(&suite.name.as_str())));
    }
    let status = child.wait()?;
    ensure!(
        status.success(),
        "building the tests and the programs failed ({status})"
    );
    ensure!(!suites.is_empty(), "cargo named no test program");
    suites.sort_by(|a, b| a.name.cmp(&b.name));
    eprintln!(
        "    build the tests and the programs: {:.1} s, {} test programs",
        start.elapsed().as_secs_f64(),
        suites.len()
    );
    Ok(suites)
}

impl Suite {
    fn from_message(message: Message) -> Option<Self> {
        if message.reason != "compiler-artifact" || !message.profile?.test {
            return None;
        }
        let directory = message.manifest_path.parent()?.to_path_buf();
        let folder = directory.file_name()?.to_str()?;
        let target = message.target?;
        let part = match target.kind.first().map(String::as_str) {
            Some("test") => target.name,
            Some("bin") => format!("bin {}", target.name),
            _ => "lib".to_owned(),
        };
        Some(Self {
            name: format!("{folder}::{part}"),
            kind: SuiteKind::of(folder),
            program: message.executable?,
            directory,
        })
    }

    /// Returns a command that runs all tests of the suite and reports the duration of each.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        // `--report-time` is an unstable option of libtest.
        command
            .args(["-Zunstable-options", "--report-time"])
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO", env!("CARGO"))
            .env("CARGO_MANIFEST_DIR", &self.directory)
            .current_dir(&self.directory);
        if self.name == SUITE_WITH_SPIRE {
            command.args(["--skip", "spire::"]);
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suite(line: &str) -> Option<Suite> {
        Suite::from_message(serde_json::from_str(line).unwrap())
    }

    #[test]
    fn cargo_messages_name_suites() {
        let line = r#"{"reason":"compiler-artifact","package_id":"x","manifest_path":"/w/crates/development/system-tests/Cargo.toml","target":{"kind":["test"],"name":"attacks"},"profile":{"test":true},"executable":"/w/target/debug/deps/attacks-1"}"#;
        let found = suite(line).unwrap();
        assert_eq!(found.name, "system-tests::attacks");
        assert_eq!(found.kind, SuiteKind::Lab);
        let no_test = line.replace("\"test\":true", "\"test\":false");
        assert!(suite(&no_test).is_none());
        assert!(suite(r#"{"reason":"build-finished","success":true}"#).is_none());
    }

    #[test]
    fn suites_are_classified_by_their_resource() {
        assert_eq!(SuiteKind::of("cluster-tests"), SuiteKind::Cluster);
        assert_eq!(SuiteKind::of("cni"), SuiteKind::Lab);
        assert_eq!(SuiteKind::of("l7"), SuiteKind::Unit);
    }
}
