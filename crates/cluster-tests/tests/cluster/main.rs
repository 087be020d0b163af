//! The mesh on a real Kubernetes. One binary, so that all tests share one cluster.
#![expect(clippy::indexing_slicing, reason = "tests")]

mod harness;
mod joining;
mod network_policies;
mod opting;
mod policies;
mod probes;
mod services;
mod starting;
