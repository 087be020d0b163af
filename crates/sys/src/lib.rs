//! The kernel: namespaces, sockets, SEQPACKET with descriptors, netlink, nftables.
//!
//! The only crate that enters a network namespace or speaks netlink. Decides nothing: what should
//! stand in a namespace is a value from `ambit-netplan`.
#![forbid(unsafe_code)]

pub mod procfs;
pub mod addresses;
mod iptables;
mod netlink;
mod nft;
mod route;
pub mod netns;
pub mod redirection;
pub mod socket;
pub mod seqpacket;
