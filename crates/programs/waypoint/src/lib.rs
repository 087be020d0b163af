//! The waypoint: HTTP understood, authorized, routed and measured for the pods it covers.
//!
//! A tunnel's way: [`server`] takes it, `target` finds what it asks for and `caller` who asks; what is inside is
//! relayed as it is (`tcp`) or understood as HTTP (`http`), and goes out through `upstream`. What the control
//! plane says of the waypoint is in [`published`].
#![forbid(unsafe_code)]

pub mod app;
mod applied_services;
mod attachment_lookup;
mod attachments;
mod caller;
mod calls;
pub mod command;
pub mod config;
mod destination;
mod extensions;
mod headers;
mod hops;
mod http;
mod in_flight_checks;
mod listeners;
mod memory;
mod memory_gauge;
mod message;
mod metered;
mod mirrors;
mod names;
mod on_behalf;
mod origination;
mod plugins;
pub mod published;
mod rate_limits;
mod retry_budget;
mod retry_mark;
mod route_owner;
pub mod server;
mod session;
mod sniff;
mod stalls;
mod target;
mod tcp;
mod telemetry_config;
pub mod telemetry_export;
mod tunnel_windows;
mod upstream;
mod upstream_lookup;
pub mod waypoint;
mod wire;
