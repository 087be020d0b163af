//! Messages of external authorization, `envoy.service.auth.v3.Authorization/Check`: the request of a waypoint, and the
//! response of an authorization provider.
//!
//! The messages are a subset of Envoy's API (`proto/ext_authz.proto`). Unknown fields of a response are ignored, as
//! usual in protobuf.

use std::{
    collections::HashMap,
    net::SocketAddr,
    time::{SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use prost::Message;

use crate::generated::envoy::{
    config::core::v3::{
        Address, HeaderValueOption, SocketAddress, header_value_option::HeaderAppendAction,
    },
    service::auth::v3::{
        self as auth, AttributeContext, DeniedHttpResponse, OkHttpResponse, attribute_context,
    },
};

#[cfg(test)]
mod tests;

/// Path of the gRPC method `Check`.
pub const CHECK_PATH: &str = "/envoy.service.auth.v3.Authorization/Check";

/// Client or server of the checked request.
#[derive(Clone, Copy, Debug)]
pub struct Peer<'a> {
    /// Address of the peer.
    pub address: SocketAddr,
    /// SPIFFE ID of the peer, if mTLS verified it.
    pub principal: Option<&'a str>,
}

/// HTTP attributes of the checked request.
#[derive(Clone, Debug, Default)]
pub struct HttpCheckRequest {
    /// Id of the request, for logs of the provider.
    pub id: String,
    /// Method of the request.
    pub method: String,
    /// Headers by lower-case name; a name occurs once.
    pub headers: HashMap<String, String>,
    /// Path of the request, with the query.
    pub path: String,
    /// Authority of the request.
    pub host: String,
    /// Size of the request's body in bytes, if known.
    pub body_bytes: Option<u64>,
    /// HTTP version in Envoy's notation, such as `HTTP/1.1`.
    pub protocol: &'static str,
    /// Beginning of the body, up to the provider's limit.
    pub body: Vec<u8>,
    /// Whether the body is sent as bytes instead of text.
    pub body_as_bytes: bool,
}

/// Check of an HTTP request or connection, `envoy.service.auth.v3.CheckRequest`.
#[derive(Clone, Debug)]
pub struct CheckRequest<'a> {
    /// Client of the request.
    pub source: Peer<'a>,
    /// Server of the request.
    pub destination: Peer<'a>,
    /// Time at which the request arrived.
    pub time: SystemTime,
    /// Checked request; `None` for a connection that is not HTTP.
    pub http: Option<HttpCheckRequest>,
    /// Server name (SNI) of a TLS connection.
    pub sni: Option<&'a str>,
}

/// Header change that a provider requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderMutation {
    /// Name of the header as the provider sent it.
    pub name: String,
    /// Value of the header.
    pub value: Vec<u8>,
    /// Operation on the header.
    pub action: HeaderAction,
}

/// Way in which a provider changes a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderAction {
    /// Replaces existing values of the header.
    Set,
    /// Appends to existing values of the header.
    Append,
    /// Adds the header if it is absent.
    AddIfAbsent,
    /// Replaces the header only if it is present.
    SetIfPresent,
}

/// Response of an authorization provider, `envoy.service.auth.v3.CheckResponse`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckResponse {
    /// The provider allows the request.
    Allowed(AllowedResponse),
    /// The provider denies the request.
    Denied(DeniedResponse),
}

/// Changes that the provider makes to an allowed request and to its response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedResponse {
    /// Changes of request headers.
    pub headers: Vec<HeaderMutation>,
    /// Names of request headers to remove.
    pub remove_headers: Vec<String>,
    /// Changes of response headers to the client.
    pub response_headers: Vec<HeaderMutation>,
    /// Query parameters to set.
    pub query_set: Vec<(String, String)>,
    /// Names of query parameters to remove.
    pub query_remove: Vec<String>,
}

/// Response that the client receives when the provider denies its request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeniedResponse {
    /// HTTP status of the response; `None` is 403.
    pub status: Option<u16>,
    /// Headers of the response.
    pub headers: Vec<HeaderMutation>,
    /// Body of the response.
    pub body: Vec<u8>,
}

/// Error of decoding a provider's response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckResponseError {
    /// The response is not a protobuf message of this type.
    #[error("the answer is no CheckResponse: {0}")]
    Malformed(#[source] prost::DecodeError),
    /// The response neither allows nor denies.
    #[error("the response neither allows nor denies")]
    NoDecision,
    /// The response's gRPC status allows the request, but its content denies it, or the reverse.
    #[error("the answer contradicts itself")]
    Contradiction,
}

impl CheckRequest<'_> {
    /// Encodes the check as a protobuf message.
    pub fn encode(self) -> Vec<u8> {
        let of_epoch = self.time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = prost_types::Timestamp {
            seconds: i64::try_from(of_epoch.as_secs()).unwrap_or(i64::MAX),
            nanos: i32::try_from(of_epoch.subsec_nanos()).unwrap_or_default(),
        };
        let http = self.http.map(|http| {
            let (body, raw_body) = if http.body_as_bytes {
                (String::new(), http.body.into())
            } else {
                (
                    String::from_utf8_lossy(&http.body).into_owned(),
                    Bytes::new(),
                )
            };
            attribute_context::HttpRequest {
                id: http.id,
                method: http.method,
                headers: http.headers,
                path: http.path,
                host: http.host,
                scheme: "http".to_owned(),
                size: http
                    .body_bytes
                    .map_or(-1, |of| i64::try_from(of).unwrap_or(i64::MAX)),
                protocol: http.protocol.to_owned(),
                body,
                raw_body,
            }
        });
        let attributes = AttributeContext {
            source: Some(encode_peer(self.source)),
            destination: Some(encode_peer(self.destination)),
            request: Some(attribute_context::Request {
                time: Some(time),
                http,
            }),
            tls_session: self.sni.map(|sni| attribute_context::TlsSession {
                sni: sni.to_owned(),
            }),
        };
        auth::CheckRequest {
            attributes: Some(attributes),
        }
        .encode_to_vec()
    }
}

fn encode_peer(of: Peer<'_>) -> attribute_context::Peer {
    attribute_context::Peer {
        address: Some(Address {
            socket_address: Some(SocketAddress {
                address: of.address.ip().to_string(),
                port_value: Some(u32::from(of.address.port())),
            }),
        }),
        principal: of.principal.unwrap_or_default().to_owned(),
    }
}

impl CheckResponse {
    /// Decodes a provider's response.
    ///
    /// # Errors
    ///
    /// When the bytes are no CheckResponse, or status and content contradict each other.
    pub fn decode(bytes: &[u8]) -> Result<Self, CheckResponseError> {
        let read = auth::CheckResponse::decode(bytes).map_err(CheckResponseError::Malformed)?;
        // An `error_response` denies, too: with it nothing has been allowed.
        let denied = read.denied_response.or(read.error_response);
        let code = read.status.map(|status| status.code);
        match (code, denied, read.ok_response) {
            (None, None, None) => Err(CheckResponseError::NoDecision),
            (Some(0) | None, Some(_), _) => Err(CheckResponseError::Contradiction),
            (Some(0) | None, None, ok) => Ok(Self::Allowed(decode_allowed_response(
                ok.unwrap_or_default(),
            ))),
            (Some(_), _, Some(_)) => Err(CheckResponseError::Contradiction),
            (Some(_), denied, None) => Ok(Self::Denied(decode_denied_response(
                denied.unwrap_or_default(),
            ))),
        }
    }
}

fn decode_allowed_response(from: OkHttpResponse) -> AllowedResponse {
    let of_request = from.headers.into_iter();
    let of_answer = from.response_headers_to_add.into_iter();
    let set = from.query_parameters_to_set.into_iter();
    AllowedResponse {
        headers: of_request
            .filter_map(|one| decode_header_mutation(one, HeaderAction::Set))
            .collect(),
        remove_headers: from.headers_to_remove,
        response_headers: of_answer
            .filter_map(|one| decode_header_mutation(one, HeaderAction::Append))
            .collect(),
        query_set: set.map(|one| (one.key, one.value)).collect(),
        query_remove: from.query_parameters_to_remove,
    }
}

fn decode_denied_response(from: DeniedHttpResponse) -> DeniedResponse {
    let status = from
        .status
        .and_then(|status| u16::try_from(status.code).ok());
    let headers = from.headers.into_iter();
    DeniedResponse {
        status: status.filter(|status| *status > 0),
        headers: headers
            .filter_map(|one| decode_header_mutation(one, HeaderAction::Set))
            .collect(),
        body: from.body.into_bytes(),
    }
}

/// Converts a header change. If the deprecated field `append` is unset and `append_action` is zero, which can also mean
/// unset, the action is `default`; the default depends on the list that contains the header.
fn decode_header_mutation(
    from: HeaderValueOption,
    default: HeaderAction,
) -> Option<HeaderMutation> {
    let action = match (from.append, from.append_action()) {
        (Some(true), _) => HeaderAction::Append,
        (Some(false), _) | (None, HeaderAppendAction::OverwriteIfExistsOrAdd) => HeaderAction::Set,
        (None, HeaderAppendAction::AddIfAbsent) => HeaderAction::AddIfAbsent,
        (None, HeaderAppendAction::OverwriteIfExists) => HeaderAction::SetIfPresent,
        (None, HeaderAppendAction::AppendIfExistsOrAdd) => default,
    };
    let (name, value) = from.header?.into_parts();
    Some(HeaderMutation {
        name,
        value,
        action,
    })
}
