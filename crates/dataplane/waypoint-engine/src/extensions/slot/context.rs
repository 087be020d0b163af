//! Environment of the plugins on one worker: their shared data, and the functions that make their HTTP and gRPC calls
//! and open their streams.

use std::{fmt, pin::Pin, sync::Arc};

use ambit_wasm::{Call, CallResponse, GrpcStreamEvent, GrpcStreamMessage, SharedState};
use tokio::sync::{mpsc, watch};

use crate::{call_initiator::CallInitiator, extensions::Plugin, hops::Hops};

/// Cause of a call by a plugin: a request that it handles, or the plugin itself.
#[derive(Clone, Debug)]
pub(crate) struct CallCause {
    /// Number of waypoints that the request, and thus the plugin's call, has passed.
    pub(crate) hops: Hops,
    /// Caller of the request; `None` for calls that the plugin makes on its own.
    pub(crate) initiator: Option<Arc<CallInitiator>>,
}

impl CallCause {
    /// Cause of a call that a plugin makes outside of any request, such as by its timer.
    pub(super) const PLUGIN_ITSELF: Self = Self {
        hops: Hops::NONE,
        initiator: None,
    };
}

/// Environment of the plugins on one worker.
#[derive(Clone)]
pub(crate) struct PluginContext {
    /// Data shared by all plugins of the waypoint.
    pub(crate) shared_data: SharedState,
    /// Signal that a plugin has enqueued a message in a shared queue.
    pub(crate) queue_signal: watch::Sender<()>,
    /// Function that makes a plugin's calls.
    pub(crate) make_call: Arc<MakeCallFn>,
    /// Function that opens a plugin's streams.
    pub(crate) open_stream: Arc<OpenStreamFn>,
}

/// Function that makes a plugin's HTTP or unary gRPC call and returns the response.
type MakeCallFn = dyn Fn(Arc<Plugin>, Call, CallCause) -> Pin<Box<dyn Future<Output = CallResponse> + Send>>
    + Send
    + Sync;

impl fmt::Debug for PluginContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PluginContext").finish_non_exhaustive()
    }
}

/// Function that passes a stream's event to the plugin; returns false once the plugin has closed the stream.
pub(crate) type StreamEventHandler = Box<dyn Fn(GrpcStreamEvent) -> bool + Send + Sync>;

/// Function that opens a plugin's gRPC stream, sends its messages, and passes its events to the plugin until the stream
/// ends.
pub(crate) type OpenStreamFn = dyn Fn(
        Arc<Plugin>,
        Call,
        CallCause,
        mpsc::UnboundedReceiver<GrpcStreamMessage>,
        StreamEventHandler,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>>
    + Send
    + Sync;
