//! Delta xDS client over gRPC: runs the stream, and decodes its resources.
//!
//! The crate `ambit-xds-core` has the protocol's state machine; an [`UpdateHandler`] applies the decoded records.
#![forbid(unsafe_code)]

mod client;
mod framing;
mod node;
mod push;
mod role;
mod stream;

pub use ambit_xds_core::StreamEnding;
pub use client::{AddressDemand, Client, ClientOptions};
pub use node::{NodeInfo, NodeMetadataError};
pub use push::{CachedResource, InvalidPolicyMode, MeshUpdate, UpdateHandler, WaypointUpdate};
pub use role::{ResourceType, Role};

#[cfg(test)]
mod tests;
