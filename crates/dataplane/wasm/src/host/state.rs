//! State of one instance that host functions read and change: its contexts, calls, effects and limits.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use http::HeaderMap;

use super::log_rate::LogRateLimiter;
use crate::{
    abi::Status,
    effect::{Effect, OutstandingCalls, UnsentMessages},
    memory_limit::{InstanceMemoryLimiter, ProcessMemory},
    metrics::Metrics,
    settings::Settings,
    shared::SharedState,
    stream::{ContextId, HeaderSection, ROOT_CONTEXT, StreamContext},
};

/// State of one instance.
pub(crate) struct Host {
    pub(crate) settings: Arc<Settings>,
    pub(crate) shared: SharedState,
    pub(crate) metrics: Metrics,
    pub(crate) limits: InstanceMemoryLimiter,
    pub(crate) streams: BTreeMap<ContextId, StreamContext>,
    /// Effective context, which host functions read and change.
    pub(crate) effective_context: ContextId,
    /// Response to a call, while the module's callback for it runs.
    pub(crate) callback_data: CallbackData,
    pub(crate) effects: Vec<Effect>,
    /// Counter of messages on all streams that the network has not accepted yet.
    pub(crate) unsent_messages: Arc<UnsentMessages>,
    /// Open calls and gRPC streams by id.
    pub(crate) calls: BTreeMap<u32, PendingCall>,
    /// Counter of outstanding calls and streams, including cancelled ones that have not ended yet.
    pub(crate) outstanding_calls: Arc<OutstandingCalls>,
    pub(crate) last_call_id: u32,
    pub(crate) tick_period: u32,
    /// Contexts that the module has marked as done.
    pub(crate) done_contexts: Vec<ContextId>,
    /// Rate limit of the instance's log lines.
    pub(crate) log_rate: LogRateLimiter,
    /// Incomplete log lines of standard output and standard error.
    pub(crate) partial_lines: [Vec<u8>; 2],
}

/// Open call or stream of the module.
#[derive(Debug)]
pub(crate) struct PendingCall {
    /// Context that made the call.
    pub(crate) context: ContextId,
    /// State of the module's side of a gRPC stream; `None` for a unary call.
    pub(crate) open_stream: Option<OpenStream>,
}

/// State of the module's side of a gRPC stream.
#[derive(Debug, Default)]
pub(crate) struct OpenStream {
    pub(crate) is_ended: bool,
}

/// Response to a call, which host functions read during its callback.
#[derive(Debug, Default)]
pub(crate) struct CallbackData {
    pub(crate) headers: HeaderSection,
    pub(crate) body: Bytes,
    pub(crate) trailers: HeaderMap,
    pub(crate) grpc_initial_metadata: HeaderMap,
    pub(crate) grpc_trailing_metadata: HeaderMap,
    pub(crate) grpc_message: Bytes,
    pub(crate) grpc_status: u32,
    pub(crate) grpc_status_message: String,
}

impl Host {
    pub(crate) fn new(
        settings: Arc<Settings>,
        shared: SharedState,
        metrics: Metrics,
        memory: &Arc<ProcessMemory>,
    ) -> Self {
        let limits = InstanceMemoryLimiter::new(settings.limits.max_memory_bytes, memory.clone());
        Self {
            settings,
            shared,
            metrics,
            limits,
            streams: BTreeMap::new(),
            effective_context: ROOT_CONTEXT,
            callback_data: CallbackData::default(),
            effects: Vec::new(),
            calls: BTreeMap::new(),
            outstanding_calls: Arc::default(),
            last_call_id: 0,
            log_rate: LogRateLimiter::default(),
            unsent_messages: Arc::default(),
            tick_period: 0,
            done_contexts: Vec::new(),
            partial_lines: [Vec::new(), Vec::new()],
        }
    }

    /// Returns the request of the effective context.
    pub(crate) fn effective_stream(&mut self) -> Result<&mut StreamContext, Status> {
        self.streams
            .get_mut(&self.effective_context)
            .ok_or(Status::BadArgument)
    }
}
