//! The engine of waypoints: parses, authorizes, routes and measures HTTP for the pods that a waypoint covers.
//!
//! [`server`] accepts tunnels, `target` resolves the destination of a tunnel and `caller` its source. The bytes in the
//! tunnel are proxied as TCP (`tcp`) or as HTTP (`http`) to an `upstream`. [`published`] holds the configuration from
//! the control plane, [`explain`] predicts responses.
#![forbid(unsafe_code)]

mod applied_services;
mod attachment_lookup;
mod attachments;
mod call_initiator;
mod caller;
pub mod calls;
pub mod config;
mod counting_io;
mod destination;
pub mod envoy_admin;
pub mod explain;
mod extensions;
mod fair_share;
mod flow;
mod headers;
mod hops;
mod http;
mod http1_io;
mod http2;
mod in_flight_checks;
pub mod listeners;
mod memory;
pub mod memory_gauge;
mod message;
mod mirrors;
mod names;
pub mod plugins;
pub mod published;
mod rate_limits;
mod record_store;
pub mod records;
mod retry_budget;
mod retry_mark;
mod route_owner;
pub mod server;
mod session;
mod sniff;
mod stall_detector;
mod target;
mod tcp;
mod telemetry_config;
pub mod telemetry_export;
mod tls_origination;
mod tunnel_windows;
mod upstream;
mod upstream_lookup;
pub mod waypoint;
