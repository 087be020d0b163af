//! gRPC channels from a proxy to its control plane, for xDS and the CSR API: servers are verified by roots that are
//! read at each connection, callers identify themselves by metadata.
#![forbid(unsafe_code)]

mod channel;
mod headers;
mod roots;

pub use channel::{ChannelConfig, ChannelError, create_channel};
pub use headers::{CallHeadersError, CallMetadata, TokenSource};
pub use roots::{RootCa, RootCaError};
