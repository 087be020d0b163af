//! Tests redirection in real network namespaces: the rules, and their effect on connections.
//!
//! Every test runs with every backend, since they must behave alike.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod behaviour;
mod bpf;
mod cookies;
mod dns;
mod foreign;
mod host;
mod hostile;
mod links;
mod packets;
mod reconciling;
mod world;

use ambit_netplan::{Backend, RedirectionSpec};

const BACKENDS: [Backend; 3] = [
    Backend::Nftables,
    Backend::IptablesNft,
    Backend::IptablesLegacy,
];

fn with(backend: Backend) -> RedirectionSpec {
    RedirectionSpec {
        backend,
        probe_interfaces: vec!["eth0".into()],
        ..RedirectionSpec::default()
    }
}
