//! Tests of calls out of the mesh through a waypoint in a separate namespace, with real TLS servers outside. Each
//! module tests one property, which its header states.

mod names;
mod original_destination;
mod outside;
mod registry;
mod tenants;
mod tls;
mod wildcards;
