//! Calls out of the mesh through a waypoint in a namespace of its own, with real servers of TLS outside of it. One module
//! a property, which its header states.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

mod dialled;
mod names;
mod outside;
mod registry;
mod tenants;
mod tls;
mod wildcards;
