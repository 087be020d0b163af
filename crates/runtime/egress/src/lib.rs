//! Egress: which addresses the mesh's own processes call for what objects name, and connections to hosts that respect it.
//!
//! Whoever writes an object may name a host or a URL in it, and whoever owns a domain says what its names resolve to.
//! Control plane and waypoints reach what clients and users may not: their own loopback interfaces, nodes, the API server,
//! clouds' metadata services. [`Guard`] is the one list of these; it judges the address that is connected to, so neither
//! the spelling of a host nor a name that comes to mean something else passes it. Only the administrator's settings make
//! exceptions.
#![forbid(unsafe_code)]

mod connect;
mod forbidden;
mod guard;

pub use connect::{ConnectError, connect, connect_to, resolve};
pub use forbidden::{Forbidden, spellings};
pub use guard::{Guard, ParseNetsError, parse_nets};
