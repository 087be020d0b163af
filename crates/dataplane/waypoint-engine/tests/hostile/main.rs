//! Tests of a waypoint in this process with hostile clients and hostile applications.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod amplifiers;
mod application;
mod applications;
mod authorizers;
mod claims;
mod client_routes;
mod counts;
mod departures;
mod endings;
mod envoy_admin;
mod explained;
mod fixture;
mod floods;
mod forbidden_addresses;
mod header_blocks;
mod headless;
mod http1;
mod http2;
mod http2_requests;
mod idle;
mod in_flight_checks;
mod late_records;
mod many_connections;
mod many_endpoints;
mod overload;
mod provider_floods;
mod receive_windows;
mod reused_connections;
mod revoked;
mod routes;
mod small_messages;
mod spellings;
mod stalls;
mod trust_domains;
mod undeclared;
mod upgrades;

/// Memory allocator of the waypoint program, so that memory measurements are comparable.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;
