//! TCP servers of the agent: metrics and reports on one port, health on another.

use std::sync::Arc;

use ambit_rt::{
    Readiness,
    http::{Peer, Request, ServerOptions, text},
    spawn,
};
use prometheus_client::registry::Registry;

use super::error::RunError;
use crate::{
    config::Args,
    plugin::{self, CallSender},
};

/// Serves metrics, reports and health on the configured addresses until the drain starts.
pub(super) async fn serve(
    args: &Args,
    registry: Arc<Registry>,
    readiness: Readiness,
    calls: CallSender,
    watcher: &ambit_rt::DrainWatcher,
) -> Result<(), RunError> {
    let [metrics, health] = args.listen_addresses()?;
    if let Some(address) = metrics {
        let listener = ambit_rt::http::bind_after_predecessor(address, "metrics").await?;
        let handler = move |request: Request| {
            let (registry, calls) = (Arc::clone(&registry), calls.clone());
            async move {
                // A caller over loopback is in the agent's own pod, or comes through kubelet.
                match plugin::report(&request, &calls).await {
                    Some(response) if Peer::is_local(&request) => response,
                    _ => ambit_rt::metrics::serve_metrics(&registry, &request),
                }
            }
        };
        let options = ServerOptions::default();
        let server = ambit_rt::http::serve("metrics", listener, options, watcher.clone(), handler);
        spawn("metrics", server);
    }
    if let Some(address) = health {
        let listener = ambit_rt::http::bind_after_predecessor(address, "health").await?;
        let handler = move |request: Request| {
            let pending = readiness.pending_names();
            std::future::ready(match request.uri().path() {
                "/healthz" => text(200, "ok\n"),
                "/readyz" if pending.is_empty() => text(200, "ready\n"),
                "/readyz" => text(503, format!("not ready, pending: {}\n", pending.join(", "))),
                _ => ambit_rt::http::not_found(),
            })
        };
        let options = ServerOptions::default();
        let server = ambit_rt::http::serve("health", listener, options, watcher.clone(), handler);
        spawn("health", server);
    }
    Ok(())
}
