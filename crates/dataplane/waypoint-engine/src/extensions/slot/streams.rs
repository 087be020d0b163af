//! gRPC streams that a plugin instance has opened: they end with the instance, or when either side closes them.

use std::sync::Arc;

use ambit_wasm::{Call, CallId, GrpcStreamEvent, GrpcStreamMessage};
use tokio::sync::mpsc;

use super::{OpenPluginStream, PluginInstance};

impl PluginInstance {
    pub(super) fn open_stream(&self, token: CallId, call: Call) {
        let (send, receive) = mpsc::unbounded_channel();
        let plugin_context = &self.slot.plugin_context;
        // The slot owns its streams: a strong reference would be a cycle.
        let slot = Arc::downgrade(&self.slot);
        let generation = self.generation;
        let tell = move |event: GrpcStreamEvent| {
            let Some(slot) = slot.upgrade() else {
                return false;
            };
            let is_closed = matches!(event, GrpcStreamEvent::Closed(..));
            let instance = Self { slot, generation };
            let outcome = instance.run_callback(|vm| vm.on_stream_event(token, event));
            let goes_on = outcome.unwrap_or(false);
            if is_closed {
                instance.end_stream(token);
            }
            goes_on
        };
        let plugin = self.slot.plugin.clone();
        let cause = self.call_cause(call.context);
        let outstanding = call.permit();
        let streaming = (plugin_context.open_stream)(plugin, call, cause, receive, Box::new(tell));
        let work = async move {
            let _outstanding = outstanding;
            streaming.await;
        };
        // Locked first: the stream could end before it is inserted.
        let mut inner = self.slot.inner.lock();
        if inner.generation != self.generation {
            return;
        }
        let task = ambit_rt::spawn_abortable("plugin stream", work);
        let opened = OpenPluginStream {
            outgoing_messages: send,
            _task: task,
        };
        inner.streams.insert(token, opened);
    }

    pub(super) fn send(&self, token: CallId, message: GrpcStreamMessage) {
        if let Some(stream) = self.slot.inner.lock().streams.get(&token) {
            // A closed stream drops messages; its end is reported to the instance.
            let _sent = stream.outgoing_messages.send(message);
        }
    }

    pub(super) fn end_stream(&self, token: CallId) {
        let ended = self.slot.inner.lock().streams.remove(&token);
        drop(ended);
    }
}
