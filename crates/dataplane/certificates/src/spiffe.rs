//! Certificates from a SPIFFE agent, such as SPIRE's, over its Unix sockets: for the process itself by SPIFFE's
//! Workload API, for the workloads of a node by SPIRE's Delegated Identity API.
//!
//! The agent sends certificates with their keys, and sends replacements when it renews them; [`crate::Certificates`]
//! then fetches them from the client. While the agent is unavailable, the last certificates remain in use.

mod agent;
mod api_result;
mod delegated_identity;
mod workload_api;

pub use agent::{SpiffeSocket, SpiffeSocketError};
pub use delegated_identity::DelegatedIdentity;
pub use workload_api::WorkloadApi;
