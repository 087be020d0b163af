//! Delta xDS over gRPC: the stream, and the decoding of what comes over it.
//!
//! The protocol itself is the state machine of `ambit-xds-core`; what the records mean is the
//! [`Handler`]'s business.
#![forbid(unsafe_code)]

mod client;
mod framing;
mod intake;
mod node;
mod stream;

pub use ambit_xds_core::Ending;
pub use client::{AddressDemand, Client, ClientOptions};
pub use intake::{Cached, Handler, NotUnderstoodPolicies, Update};
pub use node::{NodeInfo, NodeMetadataError};

#[cfg(test)]
mod tests;
