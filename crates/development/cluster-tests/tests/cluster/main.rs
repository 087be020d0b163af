//! The mesh on a real Kubernetes. One binary, so that all tests share one cluster.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

mod book;
mod conformance;
mod harness;
mod joining;
mod kiali;
mod metrics;
mod network_policies;
mod pod_labels;
mod policies;
mod primary_cnis;
mod probes;
mod services;
mod starting;
mod waypoints;
