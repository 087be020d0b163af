//! Table of workloads and services, and routing of connections.
//!
//! [`MeshTable`] holds the control plane's records in compact form: strings and whole sets of fields that many
//! workloads share are stored once. [`MeshTable::outbound`] and [`MeshTable::inbound`] are pure functions over it;
//! randomness is passed in. The crate knows nothing of protobuf, sockets, tasks or time.
#![forbid(unsafe_code)]

mod backend;
mod balance;
mod endpoints;
mod gateway;
mod hairpin;
mod identities;
mod inbound;
mod intern;
mod outbound;
mod record;
mod services;
mod table;
mod workloads;

pub use backend::{ActiveRequestsAt, BackendEndpoint, BackendRequest};
pub use endpoints::{EndpointView, PortEndpoint};
pub use hairpin::WaypointBypass;
pub use identities::Identities;
pub use inbound::{
    ConnectTarget, InboundError, InboundRequest, InboundRoute, PROXY_PORTS, ProxyHeader,
};
pub use outbound::{HboneRoute, InnerTunnel, PendingRoute, PlainRoute, Route, RouteError};
pub use rand::RngCore;
pub use record::WorkloadRef;
pub use table::{MeshTable, TableConfig, TableSize, WorkloadChange};

#[cfg(test)]
mod tests;
