//! ZDS, the protocol between the node agent and the node proxies, as state machines.
//!
//! A node proxy connects to the agent's socket and sends its hello. The agent then sends the pods to serve, one request
//! at a time, and the proxy acknowledges each with an [`Ack`]. [`ProxySide`] decides how a node proxy handles the
//! requests, [`AgentSide`] drives one connection of the agent, and [`Registry`] decides which of several connected
//! proxies receives which requests. No sockets, tasks or clock: the caller passes `now` and carries out the effects in
//! order. `N` is the type of an open network namespace.
#![forbid(unsafe_code)]

mod agent;
mod message;
mod proxy;
mod registry;

pub use agent::{AgentEffect, AgentSide, CloseReason, ExpectedRecord};
pub use message::{
    Ack, MAX_ACK_TEXT_BYTES, MAX_RECORD_BYTES, PodUid, Request, WorkloadInfo, truncate_to_bytes,
};
pub use proxy::{
    Generation, PENDING_RETRY_INTERVAL, ProxyEffect, ProxyEvent, ProxySide, StopReason,
};
pub use registry::{ConnectionId, OrderError, OrderId, Registry, RegistryEffect, RegistryEvent};
