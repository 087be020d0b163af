//! The rig: one lab, two pairs of pods that differ only in their namespace's label.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Name of the lab that the benchmark brings up.
const LAB: &str = "bench";

/// A running lab and the directory of manifests it follows.
pub(crate) struct Rig {
    ambit: PathBuf,
    manifests: tempfile::TempDir,
}

impl Rig {
    /// Brings the lab up with the pods of `manifests` and waits until they are ready.
    pub(crate) fn up(ambit: &Path, manifests: &str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        fs::write(dir.path().join("rig.yaml"), manifests)?;
        let rig = Self { ambit: ambit.to_path_buf(), manifests: dir };
        let path = rig.manifests.path().to_owned();
        rig.lab(&["up", &path.to_string_lossy(), "--nodes", "1"], &[])?;
        Ok(rig)
    }

    /// Where the lab's manifests are; changes are followed.
    pub(crate) fn manifests(&self) -> &Path {
        self.manifests.path()
    }

    fn lab(&self, args: &[&str], rest: &[&str]) -> Result<Output> {
        let (verb, args) = args.split_first().context("no lab command")?;
        let output = Command::new(&self.ambit)
            .args(["lab", verb, "--name", LAB])
            .args(args)
            .args(rest)
            .stdin(Stdio::null())
            .output()?;
        ensure!(
            output.status.success(),
            "ambit lab {verb} {args:?} {rest:?} failed: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(output)
    }

    /// Runs a program in a pod and returns what it printed.
    pub(crate) fn exec(&self, pod: &str, command: &[String]) -> Result<String> {
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        let output = self.lab(&["exec", pod, "--"], &command)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Starts a program in a pod.
    pub(crate) fn spawn(&self, pod: &str, command: &[String]) -> Result<std::process::Child> {
        Ok(Command::new(&self.ambit)
            .args(["lab", "exec", "--name", LAB, pod, "--"])
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()?)
    }

    /// What `ambit lab status -o json` says.
    pub(crate) fn status(&self) -> Result<Value> {
        Ok(serde_json::from_slice(&self.lab(&["status", "-o", "json"], &[])?.stdout)?)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Err(error) = self.lab(&["down"], &[]) {
            eprintln!("{error:#}");
        }
    }
}

/// Waits until `condition` gives a value.
pub(crate) fn until<T>(
    what: &str,
    deadline: Duration,
    mut condition: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(value) = condition()? {
            return Ok(value);
        }
        ensure!(start.elapsed() < deadline, "not within {deadline:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
