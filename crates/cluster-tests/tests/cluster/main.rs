//! The mesh on a real Kubernetes. One binary, so that all tests share one cluster.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod harness;
mod joining;
mod opting;
mod outages;
mod workloads;
