//! State of one HTTP request in a plugin instance.

use std::{collections::BTreeMap, fmt, sync::Arc};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;

/// Number of a context in one instance. The plugin's root context is the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContextId(pub(crate) u32);

/// Context of the plugin itself, in which it starts and receives timers and calls.
pub(crate) const ROOT_CONTEXT: ContextId = ContextId(1);

/// Direction of an HTTP exchange: request or response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the upstream.
    Request,
    /// From the upstream to the client.
    Response,
}

/// Header section of a request or response, with its pseudo-headers.
#[derive(Clone, Debug, Default)]
pub struct HeaderSection {
    /// Pseudo-headers such as `:method`, in any order.
    pub pseudo_headers: Vec<(&'static str, String)>,
    /// Regular headers, without pseudo-headers.
    pub headers: HeaderMap,
}

/// Names of pseudo-headers.
const PSEUDO_HEADERS: [&str; 5] = [":method", ":scheme", ":authority", ":path", ":status"];

impl HeaderSection {
    /// Returns the value of a pseudo-header.
    pub fn pseudo_header(&self, name: &str) -> Option<&str> {
        let mut all = self.pseudo_headers.iter();
        all.find(|(of, _)| *of == name)
            .map(|(_, value)| value.as_str())
    }

    /// Removes a pseudo-header and returns its value.
    pub fn take_pseudo_header(&mut self, name: &str) -> Option<String> {
        let index = self.pseudo_headers.iter().position(|(of, _)| *of == name)?;
        Some(self.pseudo_headers.swap_remove(index).1)
    }

    pub(crate) fn set_pseudo_header(&mut self, name: &str, value: String) {
        let Some(name) = PSEUDO_HEADERS.into_iter().find(|known| *known == name) else {
            return;
        };
        match self.pseudo_headers.iter_mut().find(|(of, _)| *of == name) {
            Some((_, present)) => *present = value,
            None => self.pseudo_headers.push((name, value)),
        }
    }
}

/// Response that a plugin sends in place of the upstream's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalResponse {
    /// HTTP status between 200 and 599.
    pub status: u16,
    /// Response-code details for the access log.
    pub response_code_details: String,
    /// Headers of the response, without connection and framing headers.
    pub headers: HeaderMap,
    /// Body of the response.
    pub body: Bytes,
    /// gRPC status, if the module set one.
    pub grpc_status: Option<u32>,
}

/// Decision of a plugin on a request or response, after a callback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamDecision {
    /// The plugin lets the request or response continue.
    Continue,
    /// The plugin pauses the request or response until it resumes it.
    Paused,
    /// The plugin answers the request with its own response.
    LocalResponse(LocalResponse),
    /// The plugin resets the request.
    Reset,
    /// The body that the plugin buffers exceeds its limit.
    BodyTooLarge,
}

/// Value of a proxy-wasm property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PropertyValue {
    /// String, which is passed without a terminator.
    Text(String),
    /// Integer, which is passed as eight bytes.
    Number(i64),
    /// Boolean, which is passed as one byte.
    Bool(bool),
    /// List of pairs, such as headers.
    Pairs(Vec<(String, String)>),
}

/// Source of request properties, which the proxy resolves for its plugins.
pub trait PropertySource: Send + Sync {
    /// Returns the property at a path, such as `["source", "address"]`.
    fn property(&self, path: &[&str]) -> Option<PropertyValue>;
}

/// Context of one request in an instance.
pub(crate) struct StreamContext {
    pub(crate) property_source: Arc<dyn PropertySource>,
    pub(crate) request_head: HeaderSection,
    pub(crate) response_head: HeaderSection,
    pub(crate) request_trailers: HeaderMap,
    pub(crate) response_trailers: HeaderMap,
    pub(crate) request_body: BytesMut,
    pub(crate) response_body: BytesMut,
    pub(crate) request_paused: bool,
    pub(crate) response_paused: bool,
    pub(crate) local_response: Option<LocalResponse>,
    pub(crate) is_reset: bool,
    /// Properties that the module has set.
    pub(crate) properties: BTreeMap<Vec<u8>, Bytes>,
    /// Whether the request has ended; the module may delay the deletion of its context.
    pub(crate) is_done: bool,
}

impl fmt::Debug for StreamContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamContext")
            .field("request", &self.request_head)
            .finish_non_exhaustive()
    }
}

impl StreamContext {
    pub(crate) fn new(facts: Arc<dyn PropertySource>) -> Self {
        Self {
            property_source: facts,
            request_head: HeaderSection::default(),
            response_head: HeaderSection::default(),
            request_trailers: HeaderMap::new(),
            response_trailers: HeaderMap::new(),
            request_body: BytesMut::new(),
            response_body: BytesMut::new(),
            request_paused: false,
            response_paused: false,
            local_response: None,
            is_reset: false,
            properties: BTreeMap::new(),
            is_done: false,
        }
    }

    pub(crate) fn head_mut(&mut self, of: Direction) -> &mut HeaderSection {
        match of {
            Direction::Request => &mut self.request_head,
            Direction::Response => &mut self.response_head,
        }
    }

    pub(crate) fn trailers_mut(&mut self, of: Direction) -> &mut HeaderMap {
        match of {
            Direction::Request => &mut self.request_trailers,
            Direction::Response => &mut self.response_trailers,
        }
    }

    pub(crate) fn body_mut(&mut self, of: Direction) -> &mut BytesMut {
        match of {
            Direction::Request => &mut self.request_body,
            Direction::Response => &mut self.response_body,
        }
    }

    pub(crate) fn paused_mut(&mut self, of: Direction) -> &mut bool {
        match of {
            Direction::Request => &mut self.request_paused,
            Direction::Response => &mut self.response_paused,
        }
    }
}
