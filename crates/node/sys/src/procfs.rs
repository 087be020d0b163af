//! Finds the network namespaces of running pods through `/proc`.
//!
//! Every process is attributed to a pod ([`Attribution`]); the namespace of a pod's oldest process is
//! the pod's, provided that one of its interfaces has one of the pod's addresses: a process may be in
//! the pod's cgroup and in another namespace (`nsenter`, `hostNetwork` tools).

use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, File},
    io::{self, Read},
    net::IpAddr,
    path::{Path, PathBuf},
};

use crate::{
    addresses::addresses_in,
    netns::{Netns, NetnsId},
};

mod cgroup;

pub use cgroup::{CgroupError, pod_of_cgroups};

/// Maximum size of one file in a process' `/proc` directory, in bytes.
const MAX_FILE_BYTES: u64 = 256 * 1024;

/// Method by which a process is attributed to its pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribution {
    /// By the pod UID in the cgroup's path, as kubelet and container runtimes name it.
    Cgroup,
    /// By the pod UID in this environment variable, for pods that no kubelet started.
    Environ(String),
}

/// Pod whose network namespace is to be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodTarget {
    /// UID of the pod.
    pub uid: String,
    /// Alternative to the UID in the names of the pod's cgroups: the configuration hash of a static pod.
    pub cgroup_alias: Option<String>,
    /// Addresses of the pod, one of which its namespace must have; if this list is empty, no namespace is accepted.
    pub addresses: Vec<IpAddr>,
}

/// Result of a scan of `/proc`.
#[derive(Debug, Default)]
pub struct DiscoveredPods {
    /// Network namespaces that were found, by pod UID.
    pub namespaces: BTreeMap<String, Netns>,
    /// Processes that were attributed to a pod, but are in a namespace that is not the pod's.
    pub rejected: Vec<RejectedProcess>,
}

/// Process whose namespace is not that of the pod to which it was attributed.
#[derive(Debug)]
pub struct RejectedProcess {
    /// UID of the pod to which the process was attributed.
    pub uid: String,
    /// Process ID (PID) of the process.
    pub pid: u32,
    /// Reason why its namespace is not taken for the pod's.
    pub reason: RejectReason,
}

/// Reason why a process' namespace is not taken for its pod's.
#[derive(Debug, thiserror::Error)]
pub enum RejectReason {
    /// The process is in the node's own namespace.
    #[error("the process is in the node's namespace")]
    NodeNamespace,
    /// The pod has no address yet by which its namespace could be identified.
    #[error("the pod has no addresses yet")]
    NoAddresses,
    /// No interface of the namespace has one of the pod's addresses.
    #[error("no interface in the process' namespace carries an address of the pod")]
    ForeignNamespace,
    /// The namespace could not be examined.
    #[error("the namespace cannot be examined")]
    Unreadable(#[source] io::Error),
}

/// Searches the processes under `proc`, normally `/proc`, for the namespaces of `targets`. Blocks for thousands of
/// small reads. Processes that end meanwhile are skipped.
///
/// # Errors
/// When `proc` cannot be listed, or files or memory are exhausted: a pod must not be taken for one that is not running.
/// Nothing else about a single process is an error.
pub fn discover(
    proc: &Path,
    attribution: &Attribution,
    targets: &[PodTarget],
) -> io::Result<DiscoveredPods> {
    let mut names = HashMap::new();
    for pod in targets {
        names.insert(pod.uid.as_str(), pod);
        if let Some(alias) = &pod.cgroup_alias {
            names.insert(alias.as_str(), pod);
        }
    }
    let mut scan = Scan {
        node_namespaces: node_namespaces(proc)?,
        oldest_by_pod: HashMap::new(),
        rejected: Vec::new(),
    };
    for entry in fs::read_dir(proc)? {
        let entry = entry?;
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        let process = Process {
            pid,
            dir: entry.path(),
        };
        if let Err(error) = scan.examine(&process, attribution, &names)
            && is_exhaustion(&error)
        {
            return Err(error);
        }
    }
    let found = scan
        .oldest_by_pod
        .into_iter()
        .map(|(uid, (_, netns))| (uid.to_owned(), netns))
        .collect();
    Ok(DiscoveredPods {
        namespaces: found,
        rejected: scan.rejected,
    })
}

/// Returns the namespaces that belong to no pod: those of the node's first process and of the calling process.
fn node_namespaces(proc: &Path) -> io::Result<Vec<NetnsId>> {
    let mut ids = Vec::new();
    for opened in [Netns::open(proc.join("1/ns/net")), Netns::current()] {
        match opened {
            Ok(netns) => ids.push(netns.id()),
            Err(error) if is_exhaustion(&error) => return Err(error),
            Err(_) => {}
        }
    }
    Ok(ids)
}

/// Whether the error means that this process or the node is out of descriptors or memory.
fn is_exhaustion(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

struct Scan<'a> {
    node_namespaces: Vec<NetnsId>,
    oldest_by_pod: HashMap<&'a str, (u64, Netns)>,
    rejected: Vec<RejectedProcess>,
}

impl<'a> Scan<'a> {
    fn examine(
        &mut self,
        process: &Process,
        attribution: &Attribution,
        names: &HashMap<&str, &'a PodTarget>,
    ) -> io::Result<()> {
        let uid = process.pod(attribution)?;
        let Some(pod) = uid.and_then(|uid| names.get(uid.as_str()).copied()) else {
            return Ok(());
        };
        let started = process.start_time()?;
        let netns = Netns::open(process.dir.join("ns/net"))?;
        if let Some((earliest, best)) = self.oldest_by_pod.get_mut(pod.uid.as_str()) {
            if *best == netns {
                *earliest = started.min(*earliest);
                return Ok(());
            }
            if *earliest <= started {
                return Ok(());
            }
        }
        match self.check_netns(&netns, &pod.addresses) {
            Ok(()) => {
                self.oldest_by_pod.insert(&pod.uid, (started, netns));
            }
            Err(RejectReason::Unreadable(error)) if is_exhaustion(&error) => return Err(error),
            Err(why) => {
                let uid = pod.uid.clone();
                self.rejected.push(RejectedProcess {
                    uid,
                    pid: process.pid,
                    reason: why,
                });
            }
        }
        Ok(())
    }

    fn check_netns(&self, netns: &Netns, addresses: &[IpAddr]) -> Result<(), RejectReason> {
        if self.node_namespaces.contains(&netns.id()) {
            return Err(RejectReason::NodeNamespace);
        }
        check_ownership(netns, addresses)
    }
}

/// Checks that `netns` is the namespace of a pod with these addresses: one of its interfaces must have one of
/// `addresses`.
///
/// # Errors
///
/// The reason why it does not, or why its addresses are unknown.
pub fn check_ownership(netns: &Netns, addresses: &[IpAddr]) -> Result<(), RejectReason> {
    if addresses.is_empty() {
        return Err(RejectReason::NoAddresses);
    }
    let present = addresses_in(netns).map_err(RejectReason::Unreadable)?;
    let is_present = |ip: &IpAddr| present.contains(&ip.to_canonical());
    if addresses.iter().any(is_present) {
        Ok(())
    } else {
        Err(RejectReason::ForeignNamespace)
    }
}

struct Process {
    pid: u32,
    dir: PathBuf,
}

impl Process {
    fn pod(&self, attribution: &Attribution) -> io::Result<Option<String>> {
        Ok(match attribution {
            Attribution::Cgroup => {
                let text = self.read("cgroup")?;
                match pod_of_cgroups(&String::from_utf8_lossy(&text)) {
                    Ok(uid) => uid,
                    Err(error) => {
                        tracing::debug!(pid = self.pid, %error, "cannot find the pod of a process");
                        None
                    }
                }
            }
            Attribution::Environ(variable) => environ_variable(&self.read("environ")?, variable),
        })
    }

    fn start_time(&self) -> io::Result<u64> {
        let stat = self.read("stat")?;
        start_time(&String::from_utf8_lossy(&stat)).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "unexpected form of a stat file")
        })
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.dir.join(name))?
            .take(MAX_FILE_BYTES)
            .read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// Parses the start time, in clock ticks since boot, from a process' `stat` file (field 22).
fn start_time(stat: &str) -> Option<u64> {
    // The command's name, in parentheses, may itself contain spaces and parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

fn environ_variable(environ: &[u8], variable: &str) -> Option<String> {
    environ.split(|byte| *byte == 0).find_map(|entry| {
        let value = entry
            .strip_prefix(variable.as_bytes())?
            .strip_prefix(b"=")?;
        Some(String::from_utf8_lossy(value).into_owned()).filter(|value| !value.is_empty())
    })
}

#[cfg(test)]
mod tests;
