//! Port of flow events for users: HTTP/1.1 over TLS, with the gRPC port's limits of unauthenticated connections.

use std::{net::SocketAddr, sync::Arc};

use ambit_caller_auth::CallerMetrics;
use ambit_rt::http::{self as rt_http, ListenError, ServerOptions};

use super::FlowService;
use crate::serving::ServingCertificate;

/// Maximum concurrent connections, of readers and of rejected requests.
const MAX_CONNECTIONS: usize = 64;

impl FlowService {
    /// Serves flow events until the drain starts. Returns the bound address.
    ///
    /// # Errors
    ///
    /// If the address cannot be bound.
    pub async fn serve(
        self,
        address: SocketAddr,
        serving: ServingCertificate,
        metrics: CallerMetrics,
    ) -> Result<SocketAddr, ListenError> {
        let listener = rt_http::bind(address, "flow events").await?;
        let bound = listener.local_addr();
        let bound = bound.map_err(|source| ListenError {
            address,
            purpose: "flow events",
            source,
        })?;
        tracing::info!(address = %bound, "flow events");
        let drain = self.drain.clone();
        let connections = ambit_grpc_listener::http1_listener(
            listener,
            drain.clone(),
            move || serving.http1_config(),
            move |why| metrics.count_closed_connection(why.label()),
        );
        let options = ServerOptions {
            max_body: 0,
            max_connections: MAX_CONNECTIONS,
            // All users connect from the API server's address.
            max_per_address: MAX_CONNECTIONS,
            ..ServerOptions::default()
        };
        let flows = Arc::new(self);
        let respond = move |request| flows.clone().respond(request);
        let serve = rt_http::serve("flow events", connections, options, drain, respond);
        ambit_rt::spawn("flow events", serve);
        Ok(bound)
    }
}
