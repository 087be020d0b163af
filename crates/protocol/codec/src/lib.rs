//! Parsers and encoders of small wire formats: CONNECT authority, baggage, Forwarded, the original peer of a redirected
//! connection, gRPC message framing, PROXY protocol v2, traceparent.
//!
//! Every parser reads from bytes, is bounded, never panics, and allocates at most what it returns. Every format has an
//! encoder, too. The crate does not depend on sockets, HTTP libraries or a clock.
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
pub use printable::{push_escaped_text, push_json_string};
pub use proxy_v2::{ParseProxyError, ProxyHeader};
pub use traceparent::{ParseTraceParentError, TraceParent};
