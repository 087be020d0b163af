//! Tests capture by BPF programs on real connections, in network namespaces and cgroups of their own. They need root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod inbound;
mod outbound;
mod pins;
mod world;
