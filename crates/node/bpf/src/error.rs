//! Errors of capture by BPF programs.

use std::{error::Error, io, path::PathBuf};

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
    /// The programs that are attached to a cgroup cannot be queried.
    #[error("cannot query the BPF programs of the cgroup {}", path.display())]
    Query {
        /// Directory of the cgroup.
        path: PathBuf,
        /// Error of opening it or of the kernel.
        #[source]
        source: io::Error,
    },
    /// A program of another above the pod's cgroup would not run for the pod any more.
    #[error(
        "the program {program} would switch off a BPF program that is attached to the cgroup {}, which permits that it \
         is overridden (BPF_F_ALLOW_OVERRIDE); its owner can attach it with BPF_F_ALLOW_MULTI or a link", path.display()
    )]
    Overrides {
        /// Name of the program of capture.
        program: &'static str,
        /// Directory of the other program's cgroup.
        path: PathBuf,
    },
    /// Programs are attached to cgroups that the agent does not see.
    #[error(
        "BPF programs are attached above {}, to cgroups that are not visible here, and {program} may switch them off",
        path.display()
    )]
    Unseen {
        /// Name of the program of capture.
        program: &'static str,
        /// Highest directory of a cgroup that is visible.
        path: PathBuf,
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
