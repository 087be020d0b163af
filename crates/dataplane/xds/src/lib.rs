//! Delta xDS client over gRPC: the stream, and the decoding of its resources.
//!
//! The state machine of the protocol is in `ambit-xds-core`; a [`UpdateHandler`] applies the records.
#![forbid(unsafe_code)]

mod client;
mod framing;
mod intake;
mod node;
mod role;
mod stream;

pub use ambit_xds_core::StreamEnding;
pub use client::{AddressDemand, Client, ClientOptions};
pub use intake::{CachedResource, InvalidPolicyMode, MeshUpdate, UpdateHandler, WaypointUpdate};
pub use node::{NodeInfo, NodeMetadataError};
pub use role::{ResourceType, Role};

#[cfg(test)]
mod tests;
