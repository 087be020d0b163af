//! Egress: decides which addresses the mesh's own processes may call because an object names them,
//! and connects to hosts accordingly.
//!
//! An object may name any host or URL, and the owner of a domain decides what its names resolve to. Control plane and
//! waypoints can reach addresses that clients and users may not call: their own loopback interfaces, nodes, the API
//! server, clouds' metadata services. [`Guard`] forbids these addresses. The guard checks the address of each
//! connection, so neither the spelling of a host nor DNS rebinding bypasses it. Only the administrator's settings make
//! exceptions.
#![forbid(unsafe_code)]

mod connect;
mod forbidden;
mod guard;

pub use connect::{ConnectError, connect, connect_to, resolve};
pub use forbidden::{ForbiddenAddress, embedded_addresses};
pub use guard::{Guard, ParseNetsError, parse_nets};
