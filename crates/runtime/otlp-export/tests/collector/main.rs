//! Tests of exports to scripted collectors over real connections.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod fixture;
mod grpc;
mod metrics;
mod rendered;
mod scripted;
mod tls;
