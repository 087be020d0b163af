//! The mesh on a real Kubernetes. One binary, so that all tests share one cluster.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod chaos;
mod control_plane;
mod harness;
mod joining;
mod nodes;
mod opting;
mod outages;
mod policies;
mod probes;
mod services;
mod starting;
mod upgrades;
