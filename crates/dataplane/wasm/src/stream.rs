//! State of one request as a plugin sees it.

use std::{collections::BTreeMap, fmt, sync::Arc};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;

/// Number of a context in one instance. The root context of a plugin is the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContextId(pub(crate) u32);

/// Root context of the plugin.
pub(crate) const ROOT: ContextId = ContextId(1);

/// Direction of a stream: request or response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the upstream.
    Request,
    /// From the upstream to the client.
    Response,
}

/// Headers of a request or response.
#[derive(Clone, Debug, Default)]
pub struct Head {
    /// Pseudo-headers such as `:method`, in any order.
    pub pseudo: Vec<(&'static str, String)>,
    /// Regular headers, without pseudo-headers.
    pub headers: HeaderMap,
}

/// Names of pseudo-headers.
const PSEUDO: [&str; 5] = [":method", ":scheme", ":authority", ":path", ":status"];

impl Head {
    /// Returns a pseudo-header.
    pub fn pseudo(&self, name: &str) -> Option<&str> {
        let mut all = self.pseudo.iter();
        all.find(|(of, _)| *of == name)
            .map(|(_, value)| value.as_str())
    }

    /// Removes and returns a pseudo-header.
    pub fn take_pseudo(&mut self, name: &str) -> Option<String> {
        let index = self.pseudo.iter().position(|(of, _)| *of == name)?;
        Some(self.pseudo.swap_remove(index).1)
    }

    pub(crate) fn set_pseudo(&mut self, name: &str, value: String) {
        let Some(name) = PSEUDO.into_iter().find(|known| *known == name) else {
            return;
        };
        match self.pseudo.iter_mut().find(|(of, _)| *of == name) {
            Some((_, present)) => *present = value,
            None => self.pseudo.push((name, value)),
        }
    }
}

/// Local response of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalResponse {
    /// HTTP status between 200 and 599.
    pub status: u16,
    /// Response-code details for the access log.
    pub details: String,
    /// Headers without connection and framing headers.
    pub headers: HeaderMap,
    /// Body of the response.
    pub body: Bytes,
    /// gRPC status, if the module set one.
    pub grpc_status: Option<u32>,
}

/// State of a request after a callback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request or response continues.
    Go,
    /// The request is paused until the plugin resumes it.
    Paused,
    /// The plugin responds to the request.
    Answered(LocalResponse),
    /// The request was reset.
    Closed,
    /// The plugin holds more of a body than its limit.
    TooLarge,
}

/// Value of a property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Text, passed without a terminator.
    Text(String),
    /// Integer of eight bytes.
    Number(i64),
    /// Boolean value of one byte.
    Bool(bool),
    /// List of pairs, such as headers.
    Pairs(Vec<(String, String)>),
}

/// Attributes of a request that the proxy knows besides its headers.
pub trait Facts: Send + Sync {
    /// Returns a property by its path.
    fn property(&self, path: &[&str]) -> Option<Value>;
}

/// Stream context of an instance.
pub(crate) struct Stream {
    pub(crate) facts: Arc<dyn Facts>,
    pub(crate) request: Head,
    pub(crate) response: Head,
    pub(crate) request_trailers: HeaderMap,
    pub(crate) response_trailers: HeaderMap,
    pub(crate) request_body: BytesMut,
    pub(crate) response_body: BytesMut,
    pub(crate) request_paused: bool,
    pub(crate) response_paused: bool,
    pub(crate) answer: Option<LocalResponse>,
    pub(crate) closed: bool,
    /// Properties that the module set.
    pub(crate) properties: BTreeMap<Vec<u8>, Bytes>,
    /// Whether the request has ended, while the module delays the deletion of its context.
    pub(crate) is_done: bool,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("request", &self.request)
            .finish_non_exhaustive()
    }
}

impl Stream {
    pub(crate) fn new(facts: Arc<dyn Facts>) -> Self {
        Self {
            facts,
            request: Head::default(),
            response: Head::default(),
            request_trailers: HeaderMap::new(),
            response_trailers: HeaderMap::new(),
            request_body: BytesMut::new(),
            response_body: BytesMut::new(),
            request_paused: false,
            response_paused: false,
            answer: None,
            closed: false,
            properties: BTreeMap::new(),
            is_done: false,
        }
    }

    pub(crate) fn head(&mut self, of: Direction) -> &mut Head {
        match of {
            Direction::Request => &mut self.request,
            Direction::Response => &mut self.response,
        }
    }

    pub(crate) fn trailers(&mut self, of: Direction) -> &mut HeaderMap {
        match of {
            Direction::Request => &mut self.request_trailers,
            Direction::Response => &mut self.response_trailers,
        }
    }

    pub(crate) fn body(&mut self, of: Direction) -> &mut BytesMut {
        match of {
            Direction::Request => &mut self.request_body,
            Direction::Response => &mut self.response_body,
        }
    }

    pub(crate) fn paused(&mut self, of: Direction) -> &mut bool {
        match of {
            Direction::Request => &mut self.request_paused,
            Direction::Response => &mut self.response_paused,
        }
    }
}
