//! The messages.

use prost::Message;

use crate::envoy::HeaderValue;

/// Response code of the rate-limit service.
pub(super) const OK: i32 = 1;
pub(super) const OVER_LIMIT: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(super) struct RateLimitRequest {
    #[prost(string, tag = "1")]
    pub(super) domain: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) descriptors: Vec<Descriptor>,
    #[prost(uint32, tag = "3")]
    pub(super) hits_addend: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    pub(super) entries: Vec<Entry>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Entry {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RateLimitResponse {
    #[prost(int32, tag = "1")]
    pub(super) overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    pub(super) statuses: Vec<DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    pub(super) response_headers_to_add: Vec<HeaderValue>,
    #[prost(message, repeated, tag = "4")]
    pub(super) request_headers_to_add: Vec<HeaderValue>,
    #[prost(bytes = "vec", tag = "5")]
    pub(super) raw_body: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DescriptorStatus {
    #[prost(message, optional, tag = "2")]
    pub(super) current_limit: Option<Limit>,
    #[prost(uint32, tag = "3")]
    pub(super) limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub(super) duration_until_reset: Option<prost_types::Duration>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Limit {
    #[prost(uint32, tag = "1")]
    pub(super) requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    pub(super) unit: i32,
}
