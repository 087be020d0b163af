//! Tests node proxies in real network namespaces, with real redirection.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod bpf;
mod connection_ends;
mod departures;
mod dns;
mod double;
mod endpoint_waypoint;
mod enrolment;
mod fixture;
mod flows;
mod hostile;
mod pair;
mod panics;
mod policy;
mod redirection;
mod resets;
mod revocation;
mod spiffe;
#[cfg(feature = "spire")]
mod spire;
mod trust_domains;
mod waypoint;
