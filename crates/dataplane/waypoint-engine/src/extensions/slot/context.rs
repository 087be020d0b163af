//! Environment of a worker's plugins: the data that they share, and the functions that make their calls and open their
//! streams.

use std::{fmt, pin::Pin, sync::Arc};

use ambit_wasm::{Call, CallResponse, Message, Shared, StreamEvent};
use tokio::sync::{mpsc, watch};

use crate::{extensions::Plugin, hops::Hops, on_behalf::OnBehalf};

/// Cause of a plugin's call: a request, or the plugin itself.
#[derive(Clone, Debug)]
pub(crate) struct CallCause {
    /// Waypoints that the request, and thus the call, has passed.
    pub(crate) hops: Hops,
    /// Caller of the request; `None` for calls that the plugin makes on its own.
    pub(crate) on_behalf: Option<Arc<OnBehalf>>,
}

impl CallCause {
    /// Cause of calls that a plugin makes on its own.
    pub(super) const OWN: Self = Self {
        hops: Hops::NONE,
        on_behalf: None,
    };
}

/// Environment of a worker's plugins.
#[derive(Clone)]
pub(crate) struct PluginContext {
    /// Data shared by all plugins of the waypoint.
    pub(crate) shared: Shared,
    /// Changes when a queue gets a message.
    pub(crate) queues: watch::Sender<()>,
    /// Function that makes a plugin's calls.
    pub(crate) calls: Arc<MakeCall>,
    /// Function that opens a plugin's streams.
    pub(crate) streams: Arc<OpenStream>,
}

/// Function that makes a plugin's call and returns the response.
type MakeCall = dyn Fn(Arc<Plugin>, Call, CallCause) -> Pin<Box<dyn Future<Output = CallResponse> + Send>>
    + Send
    + Sync;

impl fmt::Debug for PluginContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PluginContext").finish_non_exhaustive()
    }
}

/// Passes a stream's event to the plugin; false when the plugin has closed the stream.
pub(crate) type StreamEventHandler = Box<dyn Fn(StreamEvent) -> bool + Send + Sync>;

/// Opens a stream of a plugin, sends its messages, and passes events to the plugin until the stream ends.
pub(crate) type OpenStream = dyn Fn(
        Arc<Plugin>,
        Call,
        CallCause,
        mpsc::UnboundedReceiver<Message>,
        StreamEventHandler,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>>
    + Send
    + Sync;
