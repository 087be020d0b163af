//! CPU time and resident memory of processes.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};

/// Returns the IDs of a process and its descendants; a node proxy has two processes.
pub(crate) fn with_descendants(pid: u32) -> Result<Vec<u32>> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let mut family = vec![pid];
    for child in children.split_ascii_whitespace() {
        family.push(child.parse()?);
    }
    Ok(family)
}

/// Returns the user and system time of processes with all their threads.
pub(crate) fn cpu_time(pids: &[u32]) -> Result<Duration> {
    pids.iter().map(|pid| cpu_time_of(*pid)).sum()
}

/// Returns the time that processes with all their threads have spent outside of the kernel.
pub(crate) fn user_time(pids: &[u32]) -> Result<Duration> {
    let times = pids.iter().map(|pid| Ok(times_of(*pid)?.0));
    times.sum()
}

fn cpu_time_of(pid: u32) -> Result<Duration> {
    let (user, system) = times_of(pid)?;
    Ok(user + system)
}

/// Returns the user and system time of a process with all its threads.
fn times_of(pid: u32) -> Result<(Duration, Duration)> {
    // Ticks are 1/100 s on every Linux that user space can see (USER_HZ).
    const TICK: f64 = 0.01;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The command name is in parentheses and may hold anything: count from the last one.
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_ascii_whitespace()
        .collect();
    let time = |index: usize| -> Result<Duration> {
        let ticks: f64 = fields
            .get(index)
            .context("a short /proc/PID/stat")?
            .parse()?;
        Ok(Duration::from_secs_f64(ticks * TICK))
    };
    Ok((time(11)?, time(12)?))
}

/// Returns the resident memory of processes in megabytes (10^6 bytes); a page that several processes share counts once.
pub(crate) fn resident_mb(pids: &[u32]) -> Result<f64> {
    pids.iter()
        .map(|pid| {
            let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
            Ok(Memory::from_rollup(&rollup).proportional)
        })
        .sum()
}

/// Returns the largest of the processes' peak memory, in megabytes.
pub(crate) fn peak_mb(pids: &[u32]) -> Result<f64> {
    pids.iter()
        .map(|pid| memory_mb(*pid, "VmHWM:"))
        .try_fold(0.0, |most, peak| Ok(peak?.max(most)))
}

fn memory_mb(pid: u32, field: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib: f64 = status
        .lines()
        .find_map(|line| line.strip_prefix(field))
        .and_then(|rest| rest.split_ascii_whitespace().next())
        .with_context(|| format!("no {field} of process {pid}"))?
        .parse()?;
    Ok(kib * 1024.0 / 1e6)
}

/// Kernel's summary of a process's memory mappings, in megabytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Memory {
    pub(crate) resident: f64,
    /// Shared pages divided by the number of processes that share them.
    pub(crate) proportional: f64,
    pub(crate) private_dirty: f64,
}

impl Memory {
    /// Parses `/proc/PID/smaps_rollup`; missing values are zero.
    pub(crate) fn from_rollup(text: &str) -> Self {
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.split_ascii_whitespace().next())
                .and_then(|kib| kib.parse::<f64>().ok())
                .map_or(0.0, |kib| kib * 1024.0 / 1e6)
        };
        Self {
            resident: field("Rss:"),
            proportional: field("Pss:"),
            private_dirty: field("Private_Dirty:"),
        }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            resident: self.resident + other.resident,
            proportional: self.proportional + other.proportional,
            private_dirty: self.private_dirty + other.private_dirty,
        }
    }
}

/// Lists all processes with their directories in `/proc`.
fn processes() -> Result<Vec<(u32, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let name = entry.file_name();
        if let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) {
            found.push((pid, entry.path()));
        }
    }
    Ok(found)
}

/// Finds the process of a lab that has the ID `inside` in its innermost PID namespace and this (truncated) name; returns
/// its ID in this program's PID namespace. Processes of several labs may have the same ID: those of the lab in `directory`
/// have its path in their arguments or environment.
pub(crate) fn find_outer_pid(inside: u32, name: &str, directory: &Path) -> Result<u32> {
    let name: String = name.chars().take(15).collect();
    for (pid, process) in processes()? {
        let Ok(status) = fs::read_to_string(process.join("status")) else {
            continue;
        };
        let field = |key: &str| status.lines().find_map(|line| line.strip_prefix(key));
        let innermost = field("NSpid:").and_then(|ids| ids.split_ascii_whitespace().last());
        let has_path = |file: &str| {
            let bytes = fs::read(process.join(file)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).contains(&*directory.to_string_lossy())
        };
        if field("Name:").map(str::trim) == Some(&*name)
            && innermost == Some(inside.to_string().as_str())
            && (has_path("cmdline") || has_path("environ"))
        {
            return Ok(pid);
        }
    }
    anyhow::bail!(
        "no process {name} with the id {inside} in the lab of {}",
        directory.display()
    )
}

/// Finds the processes of this name whose environment has `variable`, as `NAME=value`.
pub(crate) fn find_by_environment(name: &str, variable: &str) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for (pid, directory) in processes()? {
        let read = |file: &str| fs::read(directory.join(file)).unwrap_or_default();
        let is_named = String::from_utf8_lossy(&read("comm")).trim() == name;
        if is_named
            && read("environ")
                .split(|byte| *byte == 0)
                .any(|v| v == variable.as_bytes())
        {
            found.push(pid);
        }
    }
    anyhow::ensure!(!found.is_empty(), "no process {name} with {variable}");
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_time() {
        let me = with_descendants(std::process::id()).unwrap();
        assert!(resident_mb(&me).unwrap() > 0.1);
        assert!(peak_mb(&me).unwrap() >= resident_mb(&me).unwrap());
        let user = user_time(&me).unwrap();
        let all = cpu_time(&me).unwrap();
        assert!(user <= all && all < Duration::from_secs(3600));
    }
}
