//! Delta xDS response whose resources remain undecoded slices of the received message until each is decoded on its own.
//!
//! The first push of a large mesh is tens of megabytes; decoding all of it at once takes several times that memory.
//! Here only one decoded record exists at a time, and a record that is not valid protobuf affects no other.

use bytes::Bytes;
use prost::Message;

use super::error::{DecodeError, DecodeErrorReason};
use crate::discovery::DeltaDiscoveryRequest;

/// Path of the gRPC method of delta xDS.
pub const DELTA_PATH: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";

/// gRPC codec that decodes responses as [`LazyDeltaResponse`].
pub type DeltaCodec = tonic_prost::ProstCodec<DeltaDiscoveryRequest, LazyDeltaResponse>;

/// `envoy.service.discovery.v3.DeltaDiscoveryResponse` with undecoded resources.
#[derive(Clone, PartialEq, Message)]
pub struct LazyDeltaResponse {
    /// Encoded `Resource` messages.
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub resources: Vec<Bytes>,
    /// Type URL of the resources.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// Nonce to echo in the acknowledgement.
    #[prost(string, tag = "5")]
    pub nonce: String,
    /// Names of removed resources.
    #[prost(string, repeated, tag = "6")]
    pub removed_resources: Vec<String>,
}

/// `envoy.service.discovery.v3.Resource` with an undecoded value.
#[derive(Clone, PartialEq, Message)]
pub struct LazyResource {
    /// Version of the resource, an opaque text that the client reports when it reconnects.
    #[prost(string, tag = "1")]
    pub version: String,
    #[prost(message, optional, tag = "2")]
    resource: Option<LazyAny>,
    /// Name of the resource.
    #[prost(string, tag = "3")]
    pub name: String,
    /// Aliases by which clients can request the resource.
    #[prost(string, repeated, tag = "4")]
    pub aliases: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct LazyAny {
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

impl LazyResource {
    /// Decodes the envelope of one resource, without its value.
    pub fn decode_envelope(bytes: Bytes) -> Result<Self, DecodeError> {
        Self::decode(bytes)
            .map_err(|source| DecodeError::new("resource", DecodeErrorReason::Malformed(source)))
    }

    /// Returns the encoded record in the resource.
    pub fn value(&self) -> Bytes {
        self.resource
            .as_ref()
            .map(|any| any.value.clone())
            .unwrap_or_default()
    }
}
