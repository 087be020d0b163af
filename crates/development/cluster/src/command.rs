//! External programs: runs them, and reports their output when they fail.

use std::{
    ffi::{OsStr, OsString},
    io::Write,
    process::{Command, Output, Stdio},
};

use anyhow::{Context, Result, ensure};

/// Command line of an external program: the program with its arguments.
#[derive(Clone, Debug)]
pub(crate) struct ToolCommand(Vec<OsString>);

impl ToolCommand {
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Self {
        Self(vec![program.as_ref().to_owned()])
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.0.push(arg.as_ref().to_owned());
        self
    }

    pub(crate) fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.0
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Returns the command line: the program and its arguments.
    pub(crate) fn words(&self) -> &[OsString] {
        &self.0
    }

    pub(crate) fn command(&self) -> Command {
        let mut words = self.0.iter();
        let mut command = Command::new(words.next().cloned().unwrap_or_default());
        command.args(words).stdin(Stdio::null());
        command
    }

    /// Runs the program to its end; on failure the error contains its output.
    pub(crate) fn run(&self) -> Result<()> {
        self.output().map(drop)
    }

    /// Runs the program like [`Self::run`], and returns its standard output.
    pub(crate) fn output(&self) -> Result<String> {
        let output = self
            .command()
            .output()
            .with_context(|| self.start_error())?;
        self.check_status(&output)
    }

    /// Runs the program like [`Self::run`], with `text` on its standard input.
    pub(crate) fn run_with_input(&self, text: &str) -> Result<()> {
        let mut child = self
            .command()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| self.start_error())?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(text.as_bytes())?;
        }
        self.check_status(&child.wait_with_output()?).map(drop)
    }

    fn start_error(&self) -> String {
        let name = self.0.first().cloned().unwrap_or_default();
        format!("cannot start {}", name.display())
    }

    fn check_status(&self, output: &Output) -> Result<String> {
        ensure!(
            output.status.success(),
            "{} failed ({}): {}{}",
            self.0.join(OsStr::new(" ")).display(),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Runs many `ip` commands (Debian package iproute2) at once, here or in a network namespace.
pub(crate) fn ip_batch(namespace: Option<&str>, lines: &str) -> Result<()> {
    let namespace = namespace.map(|namespace| ["-n", namespace]);
    ToolCommand::new("ip")
        .args(namespace.iter().flatten())
        .args(["-batch", "-"])
        .run_with_input(lines)
}
