//! Errors of applying, reading and removing redirection.

use std::{io, path::PathBuf};

use ambit_bpf::CaptureError;
use ambit_netplan::{Backend, Family, SpecError};
use ambit_rt::ErrorChain;

use crate::{iptables::IptablesError, nft::NftError};

/// Error of applying, reading or removing redirection.
#[derive(Debug, thiserror::Error)]
pub enum RedirectionError {
    /// The specification is invalid.
    #[error("the requested redirection is not possible")]
    Spec(#[from] SpecError),
    /// The namespace cannot be entered.
    #[error("cannot enter the network namespace")]
    Enter(#[source] io::Error),
    /// An nftables operation failed.
    #[error("nftables refused the rules")]
    Nft(#[from] NftError),
    /// An iptables operation failed.
    #[error("iptables refused the rules")]
    Iptables(#[from] IptablesError),
    /// The policy rule or the local route could not be changed.
    #[error("cannot change the {family} policy routing")]
    Routing {
        /// Address family of the policy rule and route.
        family: Family,
        /// Error that the kernel returned.
        #[source]
        source: io::Error,
    },
    /// Pre-capture connections cannot be listed, or cannot be made known to connection tracking.
    #[error(
        "cannot let the connections from before the capture go on; the kernel needs inet_diag and \
         nf_conntrack_netlink, and room in its table of connections"
    )]
    Connections(#[source] io::Error),
    /// A BPF operation failed.
    #[error("BPF programs cannot capture the pod")]
    Bpf(#[from] CaptureError),
    /// The pod's cgroup cannot be opened.
    #[error("cannot open the pod's cgroup {}; capture by BPF programs needs cgroups of version 2", path.display())]
    Cgroup {
        /// Directory of the cgroup.
        path: PathBuf,
        /// Error of opening it.
        #[source]
        source: io::Error,
    },
    /// The addresses or the cookie of the namespace cannot be read.
    #[error("cannot read the pod's addresses, or the number of its network namespace")]
    Addresses(#[source] io::Error),
    /// The sysctl that BPF programs depend on cannot be set.
    #[error(
        "cannot set net.ipv4.tcp_fwmark_accept in the pod, without which replies to the proxy would leave \
         the pod; use nftables"
    )]
    AcceptedMarks,
    /// Another backend captures the pod, and its connections would break.
    #[error("the pod is already captured by {0}, and its connections would break; restart the pod")]
    CapturedBy(&'static str),
    /// The pod has several network interfaces, whose packets may leave by another one than they arrive by.
    #[error(
        "the pod has addresses on {0} network interfaces, and BPF programs capture a pod with one"
    )]
    Interfaces(usize),
    /// No proxy has entered its listeners, so that the programs would refuse every connection.
    #[error(
        "the pod's node proxy has not entered its listeners for BPF programs: it is of another version, is not \
         Ambit's, or does not see the directory {}", path.display()
    )]
    NoProxy {
        /// Directory of the pod's programs.
        path: PathBuf,
    },
    /// No backend for the rules works on this node.
    #[error(
        "no way to set redirection rules works here ({}); enable nf_tables with inet nat, fib and \
         reject in the kernel, or install iptables",
        .0.iter().map(|(backend, error)| format!("{backend}: {}", ErrorChain(error))).collect::<Vec<_>>().join("; ")
    )]
    NoBackend(Vec<(Backend, Self)>),
}

impl RedirectionError {
    /// Whether the error is a missing feature of this backend, so that another one may work.
    pub(super) fn is_unsupported(&self) -> bool {
        match self {
            Self::Nft(error) => error.is_unsupported(),
            Self::Iptables(_) => true,
            _ => false,
        }
    }
}
