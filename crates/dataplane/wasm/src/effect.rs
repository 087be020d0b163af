//! Network calls and other effects that a module requests from the waypoint, and their results.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::HeaderMap;

use crate::{
    limits::MAX_CALL_BYTES,
    stream::{ContextId, HeaderSection},
};

/// Number by which a module identifies one of its calls or streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub(crate) u32);

/// Protocol of a module's call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// HTTP request and its response.
    Http,
    /// Unary gRPC call: `body` is the request message without its framing.
    Grpc,
}

/// HTTP or gRPC call that a module requests.
#[derive(Clone, Debug)]
pub struct Call {
    /// Context that makes the call: a request's, or the plugin's root context.
    pub context: ContextId,
    /// Upstream as the module names it.
    pub upstream: String,
    /// Request headers; `:authority` is absent for gRPC.
    pub head: HeaderSection,
    /// Request body; for gRPC, the message without its framing.
    pub body: Bytes,
    /// Trailers of the request.
    pub trailers: HeaderMap,
    /// Timeout for the response, set by the module.
    pub timeout: Duration,
    /// Protocol of the call: HTTP or gRPC.
    pub kind: CallKind,
    pub(crate) permit: CallPermit,
}

/// Counts an instance's outstanding calls and streams, and their bytes. A cancelled call counts until its permit is
/// dropped.
#[derive(Debug, Default)]
pub(crate) struct OutstandingCalls {
    count: AtomicUsize,
    bytes: AtomicUsize,
}

impl OutstandingCalls {
    /// Takes a permit for a call; `None` if the calls or their bytes exceed the limits.
    pub(crate) fn try_acquire(self: &Arc<Self>, bytes: usize, most: usize) -> Option<CallPermit> {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let all = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let outstanding = CallPermit(Arc::new(CallPermitInner(self.clone(), bytes)));
        (count <= most && all <= MAX_CALL_BYTES).then_some(outstanding)
    }
}

/// Permit of one outstanding call, which counts until all clones are dropped.
#[derive(Clone, Debug)]
pub struct CallPermit(
    #[expect(dead_code, reason = "what it does is to be held")] Arc<CallPermitInner>,
);

#[derive(Debug)]
struct CallPermitInner(Arc<OutstandingCalls>, usize);

impl Drop for CallPermitInner {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
        self.0.bytes.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl Call {
    /// Returns the permit that counts the call as outstanding until it is dropped.
    pub fn permit(&self) -> CallPermit {
        self.permit.clone()
    }
}

/// Response to a module's call.
#[derive(Clone, Debug, Default)]
pub struct CallResponse {
    /// Response headers; empty without a response.
    pub head: HeaderSection,
    /// Response body; for gRPC, the message without its framing.
    pub body: Bytes,
    /// Trailers of the response.
    pub trailers: HeaderMap,
    /// gRPC status (zero for success) and message.
    pub grpc_status: (u32, String),
}

/// Effect that a module requests from the waypoint.
#[derive(Debug)]
pub enum Effect {
    /// Signals that [`crate::Vm::stream_decision`] of a request's context may have changed.
    StreamDecisionChanged(ContextId),
    /// Starts a call.
    StartCall(CallId, Box<Call>),
    /// Opens a gRPC stream; the call has no body.
    OpenStream(CallId, Box<Call>),
    /// Sends a message on a stream.
    SendMessage(CallId, GrpcStreamMessage),
    /// Cancels a call or stream whose context has ended.
    CancelCall(CallId),
    /// Subscribes the plugin to the shared queue with this id.
    SubscribeQueue(u32),
    /// Signals that a message was added to the shared queue with this id.
    MessageEnqueued(u32),
}

/// Maximum unsent gRPC stream messages of an instance. Messages are limited as well as bytes, since even empty ones use
/// memory.
const MAX_UNSENT_MESSAGES: usize = 1024;

/// Message that a module sends on a gRPC stream. It counts as unsent until the value is dropped.
#[derive(Debug)]
pub struct GrpcStreamMessage {
    /// Message without its framing; `None` if there is only the end of the stream.
    pub bytes: Option<Bytes>,
    /// Whether the module closes its side of the stream after this message.
    pub end_of_stream: bool,
    _unsent_guard: UnsentGuard,
}

impl Effect {
    /// Whether the effect is redundant after `other`, since both are the same signal.
    fn is_duplicate_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::StreamDecisionChanged(one), Self::StreamDecisionChanged(other)) => one == other,
            (Self::SubscribeQueue(one), Self::SubscribeQueue(other))
            | (Self::MessageEnqueued(one), Self::MessageEnqueued(other)) => one == other,
            _ => false,
        }
    }

    /// Appends the effect to `others`, unless it repeats one of them.
    pub(crate) fn push_unless_duplicate(self, others: &mut Vec<Self>) {
        if !others.iter().any(|other| self.is_duplicate_of(other)) {
            others.push(self);
        }
    }
}

impl GrpcStreamMessage {
    pub(crate) fn new(bytes: Option<Bytes>, is_end: bool, unsent: &Arc<UnsentMessages>) -> Self {
        let length = bytes.as_ref().map_or(0, Bytes::len);
        unsent.bytes.fetch_add(length, Ordering::Relaxed);
        unsent.messages.fetch_add(1, Ordering::Relaxed);
        Self {
            bytes,
            end_of_stream: is_end,
            _unsent_guard: UnsentGuard(unsent.clone(), length),
        }
    }
}

/// Counter of the gRPC stream messages of an instance, and their bytes, that the network has not accepted yet.
#[derive(Debug, Default)]
pub(crate) struct UnsentMessages {
    bytes: AtomicUsize,
    messages: AtomicUsize,
}

impl UnsentMessages {
    /// Whether the unsent messages or their bytes exceed the limits.
    pub(crate) fn exceeds_limits(&self, most_bytes: usize) -> bool {
        self.bytes.load(Ordering::Relaxed) > most_bytes
            || self.messages.load(Ordering::Relaxed) > MAX_UNSENT_MESSAGES
    }
}

/// Guard that counts a message of this size, in bytes, as unsent until it is dropped.
#[derive(Debug)]
struct UnsentGuard(Arc<UnsentMessages>, usize);

impl Drop for UnsentGuard {
    fn drop(&mut self) {
        self.0.bytes.fetch_sub(self.1, Ordering::Relaxed);
        self.0.messages.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Event on a module's gRPC stream.
#[derive(Clone, Debug)]
pub enum GrpcStreamEvent {
    /// Response headers of the server.
    Headers(HeaderMap),
    /// Message of the server, without its framing.
    Message(Bytes),
    /// Trailers, which end the server's side of the stream.
    Trailers(HeaderMap),
    /// End of the stream with gRPC status and message; no further event follows.
    Closed(u32, String),
}
