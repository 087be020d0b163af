//! gRPC channels from a proxy to its control plane, for xDS and the CSR API. The proxy verifies servers by root
//! certificates that it reads for each connection, and identifies itself by a token in the call's metadata.
#![forbid(unsafe_code)]

mod channel;
mod headers;
mod roots;

pub use channel::{ChannelConfig, ChannelError, create_channel};
pub use headers::{CallHeadersError, CallMetadata, TokenSource};
pub use roots::{RootCa, RootCaError};
