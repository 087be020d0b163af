//! Serves xDS and the CSR API on accepted connections.
//!
//! A connection has a maximum age, so that clients spread over all replicas, also over those that
//! started later. At its end, and when the control plane stops, the client gets a GOAWAY, its
//! streams end in order, and it connects again, perhaps to another replica. Unauthenticated
//! connections are limited in time and number (see [`CallerState`]).

use std::{convert::Infallible, sync::Arc, time::Duration};

use ambit_rt::DrainWatcher;
use hyper::{server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rand::Rng;
use tokio::sync::{Semaphore, watch};
use tokio_stream::StreamExt;
use tonic::{body::Body, service::Routes, transport::server::Connected};
use tower_service::Service;

use crate::{
    accept::{IncomingConnections, TlsConnection},
    caller_state::{CallerState, ConnectionCloseReason},
};

/// Maximum concurrent streams of one connection.
const MAX_STREAMS: u32 = 128;
/// HTTP/2 flow-control windows in bytes, of a stream and of a connection. Any client may send as much before it is
/// authenticated.
const FLOW_CONTROL_WINDOW_BYTES: (u32, u32) = (128 << 10, 512 << 10);
/// Maximum number of long-lived connections.
const MAX_LONG_LIVED_CONNECTIONS: usize = 16_384;
/// Interval of keepalive pings to a silent peer, and their timeout.
const KEEP_ALIVE_INTERVAL_AND_TIMEOUT: (Duration, Duration) =
    (Duration::from_secs(30), Duration::from_secs(10));
/// Timeout for streams to end during the drain.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Signal that a request's connection is about to be closed, in the extensions of the request.
#[derive(Clone, Debug)]
pub struct ConnectionCloseSignal(watch::Receiver<bool>);

impl ConnectionCloseSignal {
    /// Waits until the connection is about to be closed.
    pub async fn wait(&mut self) {
        // Without its connection, the stream ends anyway.
        self.0.wait_for(|ended| *ended).await.ok();
    }
}

/// Services and limits of gRPC connections.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// gRPC services that the connections serve.
    pub routes: Routes,
    /// Maximum connection age, with 10 % jitter.
    pub max_connection_age: Duration,
}

/// Serves every connection until the drain. Calls `closed` for each connection that is closed because of its caller's
/// state.
pub async fn serve(
    mut incoming: IncomingConnections,
    options: ServeOptions,
    drain: DrainWatcher,
    closed: impl Fn(ConnectionCloseReason) + Clone + Send + 'static,
) {
    let lasting = Arc::new(Semaphore::new(MAX_LONG_LIVED_CONNECTIONS));
    while let Some(Ok(connection)) = incoming.next().await {
        let source = connection.connect_info().address.map(|peer| peer.ip());
        let caller_state = CallerState::new(source, Arc::clone(&lasting));
        let served = serve_connection(
            connection,
            caller_state,
            options.clone(),
            drain.clone(),
            closed.clone(),
        );
        ambit_rt::spawn("grpc connection", served);
    }
}

async fn serve_connection(
    mut connection: TlsConnection,
    caller_state: CallerState,
    options: ServeOptions,
    mut drain: DrainWatcher,
    closed: impl Fn(ConnectionCloseReason),
) {
    let work = drain.open_work();
    let peer = connection.connect_info();
    let over = caller_state
        .clone()
        .wait_for_close_reason(connection.take_slot());
    let age = options
        .max_connection_age
        .mul_f64(rand::rng().random_range(0.9..1.1));
    let routes = options.routes;
    let (end, ended) = watch::channel(false);
    let service = service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(peer);
        request.extensions_mut().insert(caller_state.clone());
        request
            .extensions_mut()
            .insert(ConnectionCloseSignal(ended.clone()));
        let answer = routes.clone().call(request.map(Body::new));
        async move {
            match answer.await {
                Ok(response) => Ok::<_, Infallible>(response),
                Err(never) => match never {},
            }
        }
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(FLOW_CONTROL_WINDOW_BYTES.0)
        .initial_connection_window_size(FLOW_CONTROL_WINDOW_BYTES.1)
        .keep_alive_interval(KEEP_ALIVE_INTERVAL_AND_TIMEOUT.0)
        .keep_alive_timeout(KEEP_ALIVE_INTERVAL_AND_TIMEOUT.1);
    let mut served = std::pin::pin!(builder.serve_connection(TokioIo::new(connection), service));
    let done = tokio::select! {
        done = served.as_mut() => Some(done),
        () = tokio::time::sleep(age) => None,
        _ = drain.wait_until_started() => None,
        ending = over => {
            closed(ending);
            if !ending.is_graceful() {
                tracing::debug!(peer = ?peer.address, ?ending, "connection closed");
                return;
            }
            None
        }
    };
    let done = match done {
        Some(done) => done,
        None => {
            served.as_mut().graceful_shutdown();
            end.send_replace(true);
            match tokio::time::timeout(DRAIN_TIMEOUT, served).await {
                Ok(done) => done,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = done {
        tracing::debug!(peer = ?peer.address, %error, "a connection broke");
    }
    drop(work);
}
