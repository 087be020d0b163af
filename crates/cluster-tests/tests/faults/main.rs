//! The mesh on a real Kubernetes while parts of it, or of the cluster, are killed, replaced or away.
//!
//! Not part of `cargo test`: on a busy machine of two cores some of these fail that pass alone.
//! `cargo xtask test cluster-faults` runs them.
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
mod outages;
mod upgrades;
