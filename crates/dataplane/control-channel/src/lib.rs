//! gRPC channels from a proxy to its control plane, for xDS and the CSR API: server authentication by
//! roots that are read at each connection, and metadata that identifies the caller.
#![forbid(unsafe_code)]

mod channel;
mod headers;
mod roots;

pub use channel::{ChannelConfig, ChannelError, channel};
pub use headers::{CallHeaders, CallHeadersError, TokenSource};
pub use roots::{RootCa, RootCaError};
