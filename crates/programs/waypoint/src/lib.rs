//! The waypoint: HTTP understood, authorized, routed and measured for the pods it covers.
//!
//! [`server`] accepts a tunnel, `target` finds its destination and `caller` its caller. The content is proxied as TCP
//! (`tcp`) or as HTTP (`http`), to an `upstream`. [`published`] has the configuration from the control plane,
//! [`explain`] predicts what requests are answered.
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
pub mod envoy_admin;
pub mod explain;
mod extensions;
mod fair_share;
mod flow;
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
mod record_store;
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
