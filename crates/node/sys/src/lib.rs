//! Linux kernel interfaces: network namespaces, sockets, SEQPACKET with descriptors, netlink, nftables.
//!
//! The only crate that enters a network namespace or uses netlink. It decides nothing: the desired
//! state of a namespace is a value from `ambit-netplan`.
#![forbid(unsafe_code)]

pub mod addresses;
pub mod conntrack;
pub mod datagram;
mod iptables;
pub mod links;
pub mod loopback;
mod netlink;
pub mod netns;
mod nft;
pub mod privileges;
pub mod procfs;
pub mod redirection;
mod route;
pub mod seqpacket;
mod sock_diag;
pub mod socket;
pub mod tcp_sockets;
