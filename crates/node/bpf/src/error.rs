//! Errors of capture by BPF programs.

use std::{error::Error, path::PathBuf};

/// Error of loading, attaching, changing or removing a pod's programs.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The kernel does not take the programs or their maps.
    #[error(
        "cannot load the BPF programs of capture; they need Linux 5.18 with CONFIG_CGROUP_BPF, and the \
         capabilities CAP_BPF and CAP_NET_ADMIN"
    )]
    Load(#[source] Box<dyn Error + Send + Sync>),
    /// A program cannot be attached to the cgroup or the network namespace.
    #[error("cannot attach the BPF program {program}; the pod needs a cgroup of version 2")]
    Attach {
        /// Name of the program.
        program: &'static str,
        /// Error of the library or the kernel.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// A map cannot be read or written.
    #[error("cannot use the BPF map {map}")]
    Map {
        /// Name of the map.
        map: &'static str,
        /// Error of the library or the kernel.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// A program, link or map cannot be pinned, or its pin removed.
    #[error("cannot change {}; its directory must be on a mounted bpffs", path.display())]
    Pin {
        /// Path of the pin or its directory.
        path: PathBuf,
        /// Error of the library or the kernel.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The pod has more addresses or probes than a map holds.
    #[error("the pod has {count} {what}; capture by BPF has room for {limit}")]
    TooMany {
        /// Kind of the entries.
        what: &'static str,
        /// Number of the pod's entries.
        count: usize,
        /// Number of entries that the map holds.
        limit: usize,
    },
}
