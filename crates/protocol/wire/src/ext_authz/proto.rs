//! The messages.

use std::collections::HashMap;

use prost::Message;
use prost_types::Timestamp;

use crate::envoy::HeaderValue;

#[derive(Clone, PartialEq, Message)]
pub(super) struct CheckRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) attributes: Option<AttributeContext>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AttributeContext {
    #[prost(message, optional, tag = "1")]
    pub(super) source: Option<Peer>,
    #[prost(message, optional, tag = "2")]
    pub(super) destination: Option<Peer>,
    #[prost(message, optional, tag = "4")]
    pub(super) request: Option<Request>,
    #[prost(message, optional, tag = "12")]
    pub(super) tls_session: Option<TlsSession>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Peer {
    #[prost(message, optional, tag = "1")]
    pub(super) address: Option<Address>,
    #[prost(string, tag = "4")]
    pub(super) principal: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Address {
    #[prost(message, optional, tag = "1")]
    pub(super) socket_address: Option<SocketAddress>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SocketAddress {
    #[prost(string, tag = "2")]
    pub(super) address: String,
    #[prost(uint32, optional, tag = "3")]
    pub(super) port_value: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Request {
    #[prost(message, optional, tag = "1")]
    pub(super) time: Option<Timestamp>,
    #[prost(message, optional, tag = "2")]
    pub(super) http: Option<HttpRequest>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HttpRequest {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(string, tag = "2")]
    pub(super) method: String,
    #[prost(map = "string, string", tag = "3")]
    pub(super) headers: HashMap<String, String>,
    #[prost(string, tag = "4")]
    pub(super) path: String,
    #[prost(string, tag = "5")]
    pub(super) host: String,
    #[prost(string, tag = "6")]
    pub(super) scheme: String,
    #[prost(int64, tag = "9")]
    pub(super) size: i64,
    #[prost(string, tag = "10")]
    pub(super) protocol: String,
    #[prost(string, tag = "11")]
    pub(super) body: String,
    #[prost(bytes = "vec", tag = "12")]
    pub(super) raw_body: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TlsSession {
    #[prost(string, tag = "1")]
    pub(super) sni: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CheckResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<Status>,
    #[prost(message, optional, tag = "2")]
    pub(super) denied_response: Option<DeniedHttpResponse>,
    #[prost(message, optional, tag = "3")]
    pub(super) ok_response: Option<OkHttpResponse>,
    #[prost(message, optional, tag = "5")]
    pub(super) error_response: Option<DeniedHttpResponse>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Status {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeniedHttpResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<HttpStatus>,
    #[prost(message, repeated, tag = "2")]
    pub(super) headers: Vec<HeaderValueOption>,
    #[prost(string, tag = "3")]
    pub(super) body: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HttpStatus {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct OkHttpResponse {
    #[prost(message, repeated, tag = "2")]
    pub(super) headers: Vec<HeaderValueOption>,
    #[prost(string, repeated, tag = "5")]
    pub(super) headers_to_remove: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    pub(super) response_headers_to_add: Vec<HeaderValueOption>,
    #[prost(message, repeated, tag = "7")]
    pub(super) query_parameters_to_set: Vec<QueryParameter>,
    #[prost(string, repeated, tag = "8")]
    pub(super) query_parameters_to_remove: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct QueryParameter {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HeaderValueOption {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<HeaderValue>,
    /// Protobuf message `google.protobuf.BoolValue`.
    #[prost(message, optional, tag = "2")]
    pub(super) append: Option<bool>,
    #[prost(int32, tag = "3")]
    pub(super) append_action: i32,
}
