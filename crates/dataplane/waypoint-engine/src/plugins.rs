//! Host functions of plugins at the waypoint: loading and compiling modules, attributes of requests, calls, and
//! metrics.

mod calls;
mod facts;
mod loading;
mod metrics;
mod sources;
mod streams;

use std::sync::Arc;

use ambit_wasm::{Call, CallResponse, GrpcStreamMessage};
use tokio::sync::mpsc;

use crate::{
    extensions::{
        CallCause, OpenStreamFn, Plugin, PluginContext, PluginInstance, StreamEventHandler,
    },
    waypoint::Shard,
};

pub(crate) use facts::RequestProperties;
pub use loading::load_modules;
pub use metrics::PluginMetrics;

/// Returns the running instance of a plugin on a worker; waits while the instance starts.
///
/// # Errors
/// When no instance runs; the error is the reason.
pub(crate) async fn running_instance(
    shard: &Arc<Shard>,
    plugin: &Arc<Plugin>,
) -> Result<PluginInstance, String> {
    shard
        .extensions
        .instance(|| plugin_context(shard), plugin)
        .await
}

/// Starts and stops a worker's plugin instances as the configuration changes, so that requests need not wait for a
/// start.
pub(crate) async fn maintain_instances(shard: Arc<Shard>) {
    let plugin_context = plugin_context(&shard);
    let mut changes = shard.waypoint.published.watch();
    loop {
        changes.mark_unchanged();
        let chain = shard.waypoint.published.extensions();
        shard
            .extensions
            .reconcile(&plugin_context, chain.as_deref());
        if changes.changed().await.is_err() {
            return;
        }
    }
}

fn plugin_context(shard: &Arc<Shard>) -> PluginContext {
    // The shard owns the instances: a strong reference would be a cycle.
    let weak = Arc::downgrade(shard);
    let calls = move |plugin: Arc<Plugin>, call: Call, cause: CallCause| {
        let shard = weak.upgrade();
        let response: std::pin::Pin<Box<dyn Future<Output = CallResponse> + Send>> =
            Box::pin(async move {
                match shard {
                    Some(shard) => calls::make_call(&shard, &plugin.config, call, cause).await,
                    None => CallResponse::default(),
                }
            });
        response
    };
    let weak = Arc::downgrade(shard);
    let streams = move |plugin: Arc<Plugin>,
                        call: Call,
                        cause: CallCause,
                        messages: mpsc::UnboundedReceiver<GrpcStreamMessage>,
                        tell: StreamEventHandler| {
        let shard = weak.upgrade();
        let ended: std::pin::Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
            if let Some(shard) = shard {
                streams::run_stream(&shard, &plugin.config, call, cause, messages, &tell).await;
            }
        });
        ended
    };
    let streams: Arc<OpenStreamFn> = Arc::new(streams);
    PluginContext {
        open_stream: streams,
        shared_data: shard.waypoint.shared_data.clone(),
        queue_signal: shard.waypoint.queue_signal.clone(),
        make_call: Arc::new(calls),
    }
}
