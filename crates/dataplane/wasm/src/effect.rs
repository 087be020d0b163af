//! What a module wants of the network, and what comes of it.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;

use crate::stream::{ContextId, Head};

/// Names a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub(crate) u32);

/// What a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// A request.
    Http,
    /// A call with one message: `body` is that message, without the bytes that frame it.
    Grpc,
}

/// A call that a module asks for.
#[derive(Clone, Debug)]
pub struct Call {
    /// Whom it is for, as the module has it.
    pub upstream: String,
    /// The head; of gRPC without `:authority`.
    pub head: Head,
    /// The body.
    pub body: Bytes,
    /// The trailers.
    pub trailers: HeaderMap,
    /// How long the module waits.
    pub timeout: Duration,
    /// What it is.
    pub kind: CallKind,
}

/// What came of a call.
#[derive(Clone, Debug, Default)]
pub struct CallResponse {
    /// Empty if there was no answer.
    pub head: Head,
    /// The body; of gRPC the message.
    pub body: Bytes,
    /// The trailers.
    pub trailers: HeaderMap,
    /// Of gRPC: the status, zero for success, and its text.
    pub grpc_status: (u32, String),
}

/// What a module wants to be done, or has changed.
#[derive(Debug)]
pub enum Effect {
    /// What [`crate::Vm::outcome`] says of a request may be another now.
    Changed(ContextId),
    /// A call is to be made.
    Call(Token, Box<Call>),
    /// Nobody waits for a call any more.
    Cancelled(Token),
    /// The plugin wants to know of messages in a queue.
    Listens(u32),
    /// There is a message in a queue.
    Enqueued(u32),
}
