//! Parsers and builders of small wire formats: CONNECT authority, baggage, Forwarded, the original peer of a
//! redirected connection, gRPC message framing, PROXY v2, traceparent.
//!
//! Every parser takes bytes, is bounded, never panics and allocates at most what it returns; every format that is
//! parsed here is also built here. The crate knows nothing of sockets, HTTP libraries or time.
#![forbid(unsafe_code)]

pub mod authority;
pub mod baggage;
pub mod forwarded;
pub mod grpc_frame;
pub mod original_peer;
mod printable;
pub mod proxy_v2;
pub mod traceparent;

pub use authority::{Authority, ParseAuthorityError};
pub use baggage::{Baggage, ParseBaggageError};
pub use forwarded::{Forwarded, ParseForwardedError};
pub use original_peer::{ORIGINAL_PEER_HEADER, OriginalPeer, ParseOriginalPeerError};
pub use printable::{push_json, push_text};
pub use proxy_v2::{ParseProxyError, ProxyHeader};
pub use traceparent::{ParseTraceParentError, TraceParent};
