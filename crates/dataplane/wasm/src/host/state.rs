//! State of one instance that host functions read and change: its contexts, calls, effects and limits.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use http::HeaderMap;

use super::log_rate::LogRate;
use crate::{
    abi::Status,
    effect::{Calls, Effect, Unsent},
    memory_limit::{Limiter, ProcessMemory},
    metrics::Metrics,
    settings::Settings,
    shared::Shared,
    stream::{ContextId, Head, ROOT, Stream},
};

/// State of one instance.
pub(crate) struct Host {
    pub(crate) settings: Arc<Settings>,
    pub(crate) shared: Shared,
    pub(crate) metrics: Metrics,
    pub(crate) limits: Limiter,
    pub(crate) streams: BTreeMap<ContextId, Stream>,
    /// Effective context, which host functions read and change.
    pub(crate) effective: ContextId,
    /// Response to a call, while the module's callback for it runs.
    pub(crate) received: Received,
    pub(crate) effects: Vec<Effect>,
    /// Counter of messages on all streams that the network has not accepted yet.
    pub(crate) unsent: Arc<Unsent>,
    /// Calls and streams that are open, by number.
    pub(crate) calls: BTreeMap<u32, Pending>,
    /// Counter of outstanding calls and streams, including cancelled ones that have not ended yet.
    pub(crate) outstanding: Arc<Calls>,
    pub(crate) last_call: u32,
    pub(crate) tick_period: u32,
    /// Contexts that the module has marked as done.
    pub(crate) done: Vec<ContextId>,
    /// Rate limit of the instance's log lines.
    pub(crate) logged: LogRate,
    /// Incomplete log lines of standard output and standard error.
    pub(crate) lines: [Vec<u8>; 2],
}

/// Open call or stream of the module.
#[derive(Debug)]
pub(crate) struct Pending {
    /// Context that made the call.
    pub(crate) context: ContextId,
    /// Module's side of a stream; `None` for a call.
    pub(crate) sending: Option<Sending>,
}

/// State of the module's side of a gRPC stream.
#[derive(Debug, Default)]
pub(crate) struct Sending {
    pub(crate) is_ended: bool,
}

/// Response to a call, which host functions read during its callback.
#[derive(Debug, Default)]
pub(crate) struct Received {
    pub(crate) headers: Head,
    pub(crate) body: Bytes,
    pub(crate) trailers: HeaderMap,
    pub(crate) grpc_initial: HeaderMap,
    pub(crate) grpc_trailing: HeaderMap,
    pub(crate) grpc_message: Bytes,
    pub(crate) grpc_status: u32,
    pub(crate) grpc_text: String,
}

impl Host {
    pub(crate) fn new(
        settings: Arc<Settings>,
        shared: Shared,
        metrics: Metrics,
        memory: &Arc<ProcessMemory>,
    ) -> Self {
        let limits = Limiter::new(settings.limits.memory, memory.clone());
        Self {
            settings,
            shared,
            metrics,
            limits,
            streams: BTreeMap::new(),
            effective: ROOT,
            received: Received::default(),
            effects: Vec::new(),
            calls: BTreeMap::new(),
            outstanding: Arc::default(),
            last_call: 0,
            logged: LogRate::default(),
            unsent: Arc::default(),
            tick_period: 0,
            done: Vec::new(),
            lines: [Vec::new(), Vec::new()],
        }
    }

    /// Returns the request of the effective context.
    pub(crate) fn stream(&mut self) -> Result<&mut Stream, Status> {
        self.streams
            .get_mut(&self.effective)
            .ok_or(Status::BadArgument)
    }
}
