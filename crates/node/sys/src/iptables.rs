//! Runs `iptables-save` and `iptables-restore` of either variant in the namespace of the calling
//! thread.

use std::{
    fs::File,
    io::{self, Write as _},
    process::{Command, Output, Stdio},
};

use ambit_netplan::{Backend, Family, iptables::State};

/// Error of running `iptables-save` or `iptables-restore`.
#[derive(Debug, thiserror::Error)]
pub enum IptablesError {
    /// The program could not be started, mostly because it is not installed.
    #[error("cannot run {program}; is it installed?")]
    NotStarted {
        /// Name of the program.
        program: String,
        /// Cause of the error.
        #[source]
        source: io::Error,
    },
    /// The lock file against concurrent changes cannot be locked.
    #[error("cannot lock the network namespace")]
    Lock(#[source] io::Error),
    /// The program exited with an error.
    #[error("{program} failed: {message}")]
    Failed {
        /// Name of the program.
        program: String,
        /// Truncated error output of the program.
        message: String,
    },
}

impl IptablesError {
    /// Whether the program is not installed.
    pub(crate) fn is_not_installed(&self) -> bool {
        matches!(self, Self::NotStarted { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// Locks the iptables rules of the calling thread's namespace against other threads and processes of Ambit, from
/// reading to writing them; the lock ends when the file is dropped.
pub(crate) fn lock() -> Result<File, IptablesError> {
    let locked = || {
        let namespace = File::open("/proc/thread-self/ns/net")?;
        rustix::fs::flock(&namespace, rustix::fs::FlockOperation::LockExclusive)?;
        Ok(namespace)
    };
    locked().map_err(IptablesError::Lock)
}

/// `iptables-save` and `iptables-restore` of one variant and address family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Iptables {
    program_prefix: &'static str,
}

impl Iptables {
    /// Selects the programs of a backend and address family; `None` if the backend is not iptables.
    pub(crate) fn new(backend: Backend, family: Family) -> Option<Self> {
        let stem = match (backend, family) {
            (Backend::IptablesNft, Family::V4) => "iptables-nft",
            (Backend::IptablesNft, Family::V6) => "ip6tables-nft",
            (Backend::IptablesLegacy, Family::V4) => "iptables-legacy",
            (Backend::IptablesLegacy, Family::V6) => "ip6tables-legacy",
            (Backend::Auto | Backend::Nftables | Backend::Bpf, _) => return None,
        };
        Some(Self {
            program_prefix: stem,
        })
    }

    /// Reads Ambit's chains and jumps from the kernel.
    pub(crate) fn read(self) -> Result<State, IptablesError> {
        Ok(ambit_netplan::iptables::parse_save(&self.save()?))
    }

    /// Returns the rules of all tables, as `iptables-save` prints them.
    pub(crate) fn save(self) -> Result<String, IptablesError> {
        self.save_with(&[])
    }

    /// Returns the rules of the table `nat` with their counters as text.
    pub(crate) fn save_counters(self) -> Result<String, IptablesError> {
        self.save_with(&["-c", "-t", "nat"])
    }

    fn save_with(self, arguments: &[&str]) -> Result<String, IptablesError> {
        let program = format!("{}-save", self.program_prefix);
        let output = command(&program, arguments)
            .stdin(Stdio::null())
            .output()
            .map_err(|source| IptablesError::NotStarted {
                program: program.clone(),
                source,
            })?;
        output_if_successful(&program, &output)
    }

    /// Passes a script to `iptables-restore`, which commits each table in one step.
    pub(crate) fn restore(self, script: &str) -> Result<(), IptablesError> {
        if script.is_empty() {
            return Ok(());
        }
        let program = format!("{}-restore", self.program_prefix);
        let run = |source| IptablesError::NotStarted {
            program: program.clone(),
            source,
        };
        let mut child = command(&program, &["--noflush", "--wait=30"])
            .stdin(Stdio::piped())
            .spawn()
            .map_err(run)?;
        // The pipe is closed when the handle drops, which is what ends the input. A program that gives
        // up early writes the reason to its error output, so a broken pipe here adds nothing.
        let written = child
            .stdin
            .take()
            .map_or(Ok(()), |mut pipe| pipe.write_all(script.as_bytes()));
        let output = child.wait_with_output().map_err(run)?;
        output_if_successful(&program, &output)?;
        written.map_err(run)
    }
}

fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Neither the lock of the whole node, which other programs hold for long, nor the file of
        // `lock`.
        .env("XTABLES_LOCKFILE", "/proc/self/ns/mnt");
    command
}

fn output_if_successful(program: &str, output: &Output) -> Result<String, IptablesError> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    let message: String = message.trim().chars().take(400).collect();
    Err(IptablesError::Failed {
        program: program.to_owned(),
        message,
    })
}
