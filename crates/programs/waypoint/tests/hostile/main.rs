//! A waypoint in this process, clients that send what they should not, and applications that answer so.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod application;
mod authorizers;
mod counts;
mod endings;
mod fixture;
mod http1;
mod http2;
mod routes;
