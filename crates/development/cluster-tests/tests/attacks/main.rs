//! Attacks on a mesh on a real Kubernetes, and what they must not achieve. Each module tests one property, which its
//! header states.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

mod agent_token;
mod definitions;
mod killed;
mod node_ports;
mod pre_capture_connections;
