//! Errors of applying, reading and removing redirection.

use std::io;

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
