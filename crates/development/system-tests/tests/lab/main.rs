//! Tests of the mesh by its real binaries in a lab. Each module tests one part of it, which its header states.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

mod attacks;
mod capture_by_bpf;
mod clocks;
mod connections;
mod dashboard;
mod destinations;
mod dns;
mod egress;
mod enrolment;
mod faults;
mod images;
mod own_kinds;
mod paths;
mod plugins;
mod route_filters;
mod routes;
mod supervisor;
mod tokens;
mod waypoint;
mod waypoints;
