//! Tests redirection in real network namespaces: the rules, and their effect on connections.
//!
//! Every test runs with every backend, since they must behave alike; those of effects that only rules have say so.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod behaviour;
mod bpf;
mod bpf_hooks;
mod cookies;
mod dns;
mod foreign;
mod host;
mod hostile;
mod links;
mod packets;
mod pods;
mod reconciling;
mod world;

use ambit_netplan::{Backend, RedirectionSpec};

const BACKENDS: [Backend; 3] = [
    Backend::Nftables,
    Backend::IptablesNft,
    Backend::IptablesLegacy,
];

/// Rules, and BPF programs.
const BACKENDS_AND_BPF: [Backend; 4] = [
    Backend::Nftables,
    Backend::IptablesNft,
    Backend::IptablesLegacy,
    Backend::Bpf,
];

fn with(backend: Backend) -> RedirectionSpec {
    RedirectionSpec {
        backend,
        probe_interfaces: vec!["eth0".into()],
        ..RedirectionSpec::default()
    }
}
