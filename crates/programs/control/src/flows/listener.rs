//! The port of users: HTTP/1.1 over TLS, with the limits that the gRPC port has for connections of strangers.

use std::{io, net::SocketAddr, sync::Arc};

use ambit_grpc_listener::{Incoming, TlsConnection};
use ambit_rt::http::{self as rt_http, Listen, ListenError, ServerOptions};
use futures_util::StreamExt as _;
use tokio::sync::Mutex;
use tonic::transport::server::Connected as _;

use super::Flows;
use crate::{metrics::Metrics, serving::Serving};

/// Connections at once: readers, and requests that are refused.
const MAX_CONNECTIONS: usize = 64;

struct Connections(Mutex<Incoming>);

impl Listen for Connections {
    type Stream = TlsConnection;

    async fn next(&self) -> io::Result<(TlsConnection, Option<SocketAddr>)> {
        match self.0.lock().await.next().await {
            Some(connection) => {
                let mut connection = connection?;
                // The server bounds connections from here on.
                drop(connection.take_slot());
                let peer = connection.connect_info().address;
                Ok((connection, peer))
            }
            // The drain has started, which ends the server as well.
            None => std::future::pending().await,
        }
    }
}

impl Flows {
    /// Serves until the drain starts. Returns the address.
    ///
    /// # Errors
    /// If the address cannot be had.
    pub async fn serve(
        self,
        address: SocketAddr,
        serving: Serving,
        metrics: Arc<Metrics>,
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
        let incoming = ambit_grpc_listener::incoming(
            listener,
            drain.clone(),
            move || serving.http1_config(),
            move |why| metrics.connection_closed(why.label()),
        );
        let options = ServerOptions {
            max_body: 0,
            max_connections: MAX_CONNECTIONS,
            // The API server's address is that of all users.
            max_per_address: MAX_CONNECTIONS,
            ..ServerOptions::default()
        };
        let flows = Arc::new(self);
        let respond = move |request| flows.clone().respond(request);
        let connections = Connections(Mutex::new(incoming));
        let serve = rt_http::serve("flow events", connections, options, drain, respond);
        ambit_rt::spawn("flow events", serve);
        Ok(bound)
    }
}
