//! Processes that outlive the program that started them, recorded by PID and start time, so that no other process is
//! ever mistaken for one of them.

use std::{
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};

use crate::command::ToolCommand;

/// Records and logs of a cluster's processes, by name.
#[derive(Debug)]
pub(crate) struct Processes {
    records: PathBuf,
    logs: PathBuf,
}

impl Processes {
    pub(crate) fn new(state: &Path) -> Self {
        Self {
            records: state.join("run"),
            logs: state.join("log"),
        }
    }

    /// Starts a program in a new session, with its output in a log.
    pub(crate) fn start(&self, name: &str, tool: &ToolCommand) -> Result<()> {
        fs::create_dir_all(&self.records)?;
        fs::create_dir_all(&self.logs)?;
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log(name))?;
        let mut child = ToolCommand::new("setsid")
            .args(tool.words())
            .command()
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let pid = child.id();
        let started = start_time(pid).with_context(|| format!("{name} ended at once"))?;
        fs::write(self.record_path(name), format!("{pid} {started}"))?;
        // This process is the parent, which reaps the child while it runs.
        std::thread::spawn(move || child.wait());
        Ok(())
    }

    /// Returns the PID of the process of this name, if it runs.
    pub(crate) fn pid(&self, name: &str) -> Option<u32> {
        let record = fs::read_to_string(self.record_path(name)).ok()?;
        let (pid, start) = record.split_once(' ')?;
        let pid = pid.parse().ok()?;
        (start_time(pid)? == start.parse::<u64>().ok()?).then_some(pid)
    }

    /// Terminates the process of this name, and kills it after `timeout`.
    pub(crate) fn stop(&self, name: &str, timeout: Duration) -> Result<()> {
        if let Some(pid) = self.pid(name) {
            signal(pid, Signal::TERM);
            if !wait_until_gone(pid, timeout) {
                kill(pid).with_context(|| format!("{name} does not end"))?;
            }
        }
        self.remove_record(name)
    }

    /// Kills the cluster's process of this name (SIGKILL).
    pub(crate) fn kill(&self, name: &str) -> Result<()> {
        if let Some(pid) = self.pid(name) {
            kill(pid).with_context(|| format!("{name} does not end"))?;
        }
        self.remove_record(name)
    }

    fn remove_record(&self, name: &str) -> Result<()> {
        match fs::remove_file(self.record_path(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Returns the path of the log of the process of this name.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.logs.join(format!("{name}.log"))
    }

    /// Returns the last lines of a process's log.
    pub(crate) fn log_tail(&self, name: &str) -> String {
        let text = fs::read_to_string(self.log(name)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines
            .get(lines.len().saturating_sub(8)..)
            .unwrap_or_default()
            .join("\n")
    }

    fn record_path(&self, name: &str) -> PathBuf {
        self.records.join(format!("{name}.pid"))
    }
}

/// Sends SIGKILL to a process, and waits until it has ended.
pub(crate) fn kill(pid: u32) -> Result<()> {
    signal(pid, Signal::KILL);
    if !wait_until_gone(pid, Duration::from_secs(20)) {
        bail!("process {pid} is still there after SIGKILL");
    }
    Ok(())
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // A process that has just ended needs no signal.
        let _gone = rustix::process::kill_process(pid, signal);
    }
}

fn wait_until_gone(pid: u32, timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    while start_time(pid).is_some() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

/// Returns the start time of a process in ticks since boot; `None` if it has ended.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Returns the PIDs of the processes in a network namespace.
pub(crate) fn pids_in_namespace(namespace: &Path) -> Vec<u32> {
    let Ok(expected) = fs::metadata(namespace) else {
        return Vec::new();
    };
    pids()
        .into_iter()
        .filter(|pid| {
            fs::metadata(format!("/proc/{pid}/ns/net"))
                .is_ok_and(|found| (found.dev(), found.ino()) == (expected.dev(), expected.ino()))
        })
        .collect()
}

/// Returns the PIDs of a process's children.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|child| child.parse().ok())
        .collect()
}

/// Returns the PID of a process's parent, if both exist.
pub(crate) fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    parent.trim().parse().ok()
}

/// Returns the PIDs of all processes of this machine.
pub(crate) fn pids() -> Vec<u32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_identifies_one_process() {
        let state = tempfile::tempdir().unwrap();
        let processes = Processes::new(state.path());
        processes
            .start("sleeper", &ToolCommand::new("sleep").arg("1000"))
            .unwrap();
        let pid = processes.pid("sleeper").unwrap();
        // Another process has reused the pid.
        fs::write(processes.record_path("other"), format!("{pid} 1")).unwrap();
        assert_eq!(processes.pid("other"), None);
        processes.kill("sleeper").unwrap();
        assert_eq!(processes.pid("sleeper"), None);
        assert_eq!(start_time(pid), None);
    }
}
