//! Code that node proxies and waypoints share.
//!
//! - Threads and sockets: [`workers`] carry connections, [`listeners`] accept them, [`tunnel_server`] serves
//!   tunnels.
//! - One connection, from its opening to its report: [`connection`], [`dial`], [`report`].
//! - All connections of one instance: [`connection_table`], [`recheck`] when policies change, [`in_flight`]
//!   limits of set-up, and the end of the instance ([`lifecycle`]).
//! - State of the mesh: [`state`], updated by [`control_plane`] or [`local_xds`]; the instance's own record
//!   ([`local`]),
//!   the certificates of local [`identities`], and the cache for the next process ([`warm_start`]).
//! - Settings that all proxies read: [`environment`].
//! - For operators: [`admin`], [`config_dump`], [`explain`], [`policy_metrics`], events of connections ([`flow`]),
//!   served
//!   to the control plane ([`flow_listener`]).
//!
//! Knows nothing of pods, redirection or enrolment.
#![forbid(unsafe_code)]

pub mod admin;
pub mod config_dump;
pub mod connection;
pub mod connection_table;
pub mod control_plane;
pub mod dial;
pub mod environment;
pub mod explain;
pub mod flow;
pub mod flow_listener;
mod flow_stream;
pub mod identities;
pub mod in_flight;
pub mod lifecycle;
pub mod listeners;
pub mod local;
pub mod local_xds;
pub mod policy_metrics;
pub mod recheck;
pub mod report;
mod resolve;
pub mod state;
pub mod tunnel_server;
pub mod warm_start;
pub mod workers;

pub use ambit_route::WaypointBypass;
pub use connection::{ConnectionSetup, EstablishedConnection, RelayTransport};
pub use connection_table::{ConnectionDetails, ConnectionPath, ConnectionTable, TerminationReason};
pub use dial::Dialer;
pub use in_flight::{SetupCounters, SetupLimits};
pub use lifecycle::Lifecycle;
pub use listeners::{AcceptedConnection, Listeners};
pub use local::{LocalPod, LocalWorkload};
pub use report::Report;
pub use resolve::{ResolveError, choose_address, resolve};
pub use state::SharedState;
pub use workers::Workers;
