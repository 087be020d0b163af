//! Context of one request and its response in a plugin instance (proxy-wasm stream context).

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use ambit_wasm::{ContextId, Direction, StreamDecision, VmError};

use crate::{
    extensions::{Plugin, PluginInstance, WakeSignal},
    http::reply::Reply,
};

/// Response-code details of a failed plugin, as in Envoy.
pub(super) const FAILED_DETAILS: &str = "wasm_fail_stream";

/// Context of one request in a plugin instance, deleted on drop.
pub(super) struct StreamContext {
    pub(super) plugin: Arc<Plugin>,
    pub(super) instance: PluginInstance,
    pub(super) id: ContextId,
    pub(super) wake_signal: Arc<WakeSignal>,
    /// Maximum time for which the plugin may pause the headers of a request or response.
    pub(super) max_pause: Duration,
}

impl Drop for StreamContext {
    fn drop(&mut self) {
        self.instance.delete_context(self.id);
    }
}

/// Reason why a plugin yields no decision about a request.
pub(super) enum PluginError {
    /// Failure of the plugin, after which its fail strategy applies.
    Failed(String),
    /// Rejection of a request to which a plugin has made invalid changes.
    InvalidChange(Reply),
}

impl From<VmError> for PluginError {
    fn from(failure: VmError) -> Self {
        Self::Failed(failure.to_string())
    }
}

impl StreamContext {
    /// Waits until the plugin resumes the paused request or response, or responds itself.
    pub(super) async fn wait_until_resumed(
        &self,
        of: Direction,
        outcome: StreamDecision,
    ) -> Result<StreamDecision, PluginError> {
        if outcome != StreamDecision::Paused {
            return Ok(outcome);
        }
        let settled = poll_fn(|cx| self.poll_resumed(of, cx));
        match tokio::time::timeout(self.max_pause, settled).await {
            Ok(outcome) => Ok(outcome?),
            Err(_) => Err(PluginError::Failed(format!(
                "the plugin held the message for more than {:?} (AMBIT_WASM_HOLD_TIMEOUT)",
                self.max_pause
            ))),
        }
    }

    pub(super) fn poll_resumed(
        &self,
        of: Direction,
        cx: &Context<'_>,
    ) -> Poll<Result<StreamDecision, VmError>> {
        self.wake_signal.register(cx.waker());
        match self
            .instance
            .run_callback(|vm| vm.stream_decision(of, self.id))
        {
            Ok(StreamDecision::Paused) => Poll::Pending,
            other => Poll::Ready(other),
        }
    }
}
