//! Pool of HTTP connections to endpoints.
//!
//! An HTTP/1 connection carries one request at a time and returns to the pool when the response has been read
//! completely; an HTTP/2 connection carries many. Connections are never shared between endpoints or between different
//! transports to them. HTTP/2 connections are not shared between callers either, since all requests share the
//! endpoint's receive window: a caller whose data the endpoint does not read stalls only its own requests.

mod closing_times;
mod http2_connections;
mod idle_connections;
mod key;
mod reuse;

use std::{
    collections::HashMap,
    error::Error as _,
    io,
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use ambit_hbone::PortionedReads;
use http_body_util::BodyExt as _;
use hyper::{
    Request, Response,
    body::{Body as _, Incoming},
    client::conn::{TrySendError, http1, http2},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{ChargedAccounts, ConnectionActivity, ResetOnDropStream, Stream};
use crate::{
    config::HeaderLimits,
    fair_share::{FairShare, TaskShare},
    http1_io::{Http1Io, TrailersBody},
    http2::joined_data::JoinedDataReads,
    memory::MemoryAccount,
    message::{Body, TaskExecutor, Version},
};
pub(crate) use http2_connections::StreamSlot;
use http2_connections::{ActiveStreams, Http2Connections};
use idle_connections::{Http1Connection, IdleConnections};
pub(crate) use key::HttpKey;
use reuse::{ConnectionUse, MAX_STREAMS};
pub(crate) use reuse::{Reuse, ReuseLimits};

/// Interval at which idle connections in the pool are checked for expiry.
const SWEEP_INTERVAL: Duration = Duration::from_millis(500);
/// Number of counted endpoints above which the request counters of idle endpoints are removed.
const MAX_COUNTED_ENDPOINTS: usize = 1024;
/// Receive window of one HTTP/2 response, charged to its caller.
pub(crate) const STREAM_WINDOW_BYTES: u32 = 64 << 10;
/// Receive window of an HTTP/2 connection: the sum of its streams' windows, so that an unread response never blocks
/// another.
const CONNECTION_WINDOW_BYTES: u32 = MAX_STREAMS * STREAM_WINDOW_BYTES;
/// Timeout for an endpoint's HTTP/2 SETTINGS. hyper does not report their arrival, so the pool polls for them.
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(10);
const SETTINGS_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Sender half of hyper for requests on one connection.
#[derive(Debug)]
enum HttpSender {
    /// HTTP/1.1 connection, which carries one request at a time.
    Http1(Http1Connection),
    /// HTTP/2 connection, which carries concurrent requests.
    Http2(http2::SendRequest<Body>),
}

/// Connection checked out for one request.
#[derive(Debug)]
pub(crate) struct Checkout {
    sender: HttpSender,
    key: HttpKey,
    /// Age and number of requests of the connection, including this request; `None` if the connection is not pooled.
    usage: Option<ConnectionUse>,
    stream_slot: Option<StreamSlot>,
    /// Receiver of hyper's error, if a new HTTP/2 connection fails.
    connection_failure: Option<oneshot::Receiver<hyper::Error>>,
}

#[derive(Debug)]
struct State {
    idle: IdleConnections,
    /// Whether the task that closes expired idle connections is running.
    is_sweeping: bool,
    http2: Http2Connections,
    /// Number of active requests of each endpoint.
    request_counts: HashMap<SocketAddr, Arc<AtomicUsize>>,
    /// Number of counted endpoints at which idle counters are removed next. It grows, so that removals are rare.
    cleanup_threshold: usize,
}

/// Pool of HTTP connections to endpoints. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct HttpPool(Arc<Mutex<State>>, HeaderLimits);

/// Weak reference to an [`HttpPool`].
#[derive(Debug)]
pub(crate) struct WeakHttpPool(Weak<Mutex<State>>);

impl WeakHttpPool {
    /// Closes at most `count` idle connections of each HTTP version, those first that were not used for the longest time.
    /// Only connections count that are charged to an account for which `predicate` is true. Returns their number; `None`
    /// if the pool was dropped.
    pub(super) fn close_idle(
        &self,
        count: usize,
        predicate: impl Fn(&MemoryAccount) -> bool,
    ) -> Option<usize> {
        let pool = self.0.upgrade()?;
        let mut state = pool.lock();
        let http1 = state.idle.close_charged(count, &predicate);
        Some(http1 + state.http2.close_idle(count, &predicate))
    }
}

/// Guard that counts an active request at an endpoint, for load balancing.
#[derive(Debug)]
pub(crate) struct ActiveRequestGuard(Arc<AtomicUsize>);

impl Drop for ActiveRequestGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Error of the HTTP handshake on a new connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error("the endpoint sent no HTTP/2 settings within {} s", SETTINGS_TIMEOUT.as_secs())]
    SettingsTimeout,
    #[error("the endpoint does not offer WebSocket over HTTP/2 (RFC 8441)")]
    ExtendedConnectUnsupported,
}

fn http2_builder(limits: HeaderLimits, share: &TaskShare) -> http2::Builder<TaskExecutor> {
    let mut builder = http2::Builder::new(TaskExecutor(share.clone()));
    builder
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(limits.bytes).unwrap_or(u32::MAX))
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(20));
    builder
}

/// Wraps the transport of a connection that [`http2_builder`] sets up.
fn http2_io<IO>(stream: IO) -> TokioIo<PortionedReads<JoinedDataReads<IO>>> {
    let joined = JoinedDataReads::new(stream, 0);
    TokioIo::new(PortionedReads::new(joined, CONNECTION_WINDOW_BYTES))
}

impl HttpPool {
    /// Creates an empty pool with limits for the header sections of responses, and for the number of idle HTTP/1.1
    /// connections.
    pub(crate) fn new(limits: HeaderLimits, max_idle_connections: usize) -> Self {
        let state = State {
            idle: IdleConnections::new(max_idle_connections),
            is_sweeping: false,
            http2: Http2Connections::default(),
            request_counts: HashMap::new(),
            cleanup_threshold: 0,
        };
        Self(Arc::new(Mutex::new(state)), limits)
    }

    /// Returns a weak reference to the pool.
    pub(super) fn downgrade(&self) -> WeakHttpPool {
        WeakHttpPool(Arc::downgrade(&self.0))
    }

    /// Takes a pooled connection with this key that may carry another request.
    pub(crate) fn check_out(
        &self,
        key: &HttpKey,
        reuse_limits: ReuseLimits,
        reuse: Reuse,
    ) -> Option<Checkout> {
        let mut state = self.0.lock();
        let (sender, life, stream) = match key.version {
            Version::Http1 => {
                let (connection, life) = state.idle.take(key, reuse_limits, reuse)?;
                (HttpSender::Http1(connection), life, None)
            }
            Version::Http2 => {
                let (sender, life, stream) = state.http2.take(key, reuse_limits)?;
                (HttpSender::Http2(sender), life, Some(stream))
            }
        };
        Some(Checkout {
            sender,
            key: key.clone(),
            usage: Some(life.next_request()),
            stream_slot: stream,
            connection_failure: None,
        })
    }

    /// Performs the HTTP handshake on a new connection. HTTP/1.1 runs within the CPU share of its caller.
    pub(crate) async fn handshake(
        &self,
        key: &HttpKey,
        stream: Stream,
        reuse_limits: ReuseLimits,
        share: Option<&FairShare>,
    ) -> hyper::Result<Checkout> {
        let life = ConnectionUse::new(reuse_limits);
        let (mut slot, mut failure) = (None, None);
        let in_use = ConnectionActivity::default();
        let task_share = TaskShare::Current(in_use.share().clone());
        let memory = stream.charged_accounts();
        let io = ResetOnDropStream::new(stream, in_use.clone());
        let sender = match key.version {
            Version::Http1 => {
                let mut builder = http1::Builder::new();
                builder
                    .max_buf_size(self.1.bytes)
                    .max_headers(self.1.fields);
                let io = Http1Io::new(io, in_use.additions().clone());
                let (sender, connection) = builder.handshake(TokioIo::new(io)).await?;
                let activity = in_use.clone();
                let running = task_share.run(async move {
                    if let Err(error) = connection.with_upgrades().await {
                        tracing::debug!(%error, "a connection to an endpoint ended");
                    }
                    activity.record_end();
                });
                ambit_rt::spawn("http1 upstream", running);
                HttpSender::Http1(Http1Connection {
                    sender,
                    activity: in_use,
                    memory,
                    idle_before: None,
                })
            }
            Version::Http2 => {
                in_use.share().set(share);
                let builder = http2_builder(self.1, &task_share);
                let (sender, connection) = builder.handshake(http2_io(io)).await?;
                let (failed, failing) = oneshot::channel();
                failure = Some(failing);
                let running = task_share.run(async move {
                    if let Err(error) = connection.await {
                        tracing::debug!(%error, "a connection to an endpoint ended");
                        // The receiver is only used when the first request was not sent.
                        let _unread = failed.send(error);
                    }
                });
                ambit_rt::spawn("http2 upstream", running);
                if !life.is_expired() {
                    slot = Some(self.share_connection(key, sender.clone(), life, memory));
                }
                HttpSender::Http2(sender)
            }
        };
        Ok(Checkout {
            sender,
            key: key.clone(),
            usage: Some(life),
            stream_slot: slot,
            connection_failure: failure,
        })
    }

    /// Adds an HTTP/2 connection to the pool for further requests, and returns the slot of its first request.
    fn share_connection(
        &self,
        key: &HttpKey,
        sender: http2::SendRequest<Body>,
        life: ConnectionUse,
        memory: ChargedAccounts,
    ) -> StreamSlot {
        let (streams, slot) = ActiveStreams::with_first_stream();
        let mut state = self.0.lock();
        let http2 = &mut state.http2;
        http2.insert(key.clone(), sender, life, streams.clone(), memory);
        drop(state);
        let (pool, key) = (self.clone(), key.clone());
        ambit_rt::spawn("http2 idle", async move {
            let mut wait = life.limits.http2_idle_timeout;
            loop {
                tokio::time::sleep(wait).await;
                let next = pool.0.lock().http2.retire(&key, &streams);
                match next {
                    Some(next) => wait = next,
                    None => return,
                }
            }
        });
        slot
    }

    /// Performs the HTTP/2 handshake on a new connection for one extended CONNECT (RFC 8441), which the endpoint's
    /// SETTINGS must allow.
    pub(crate) async fn handshake_extended_connect(
        &self,
        key: &HttpKey,
        stream: Stream,
        share: &FairShare,
    ) -> Result<Checkout, HandshakeError> {
        let task_share = TaskShare::Fixed(share.clone());
        let mut builder = http2_builder(self.1, &task_share);
        // No streams are allowed before the endpoint's SETTINGS arrive.
        builder.initial_max_send_streams(0);
        let (sender, connection) = builder.handshake(http2_io(stream)).await?;
        let deadline = Instant::now() + SETTINGS_TIMEOUT;
        while connection.current_max_send_streams() == 0 {
            if Instant::now() >= deadline {
                return Err(HandshakeError::SettingsTimeout);
            }
            tokio::time::sleep(SETTINGS_POLL_INTERVAL).await;
        }
        if !connection.is_extended_connect_protocol_enabled() {
            return Err(HandshakeError::ExtendedConnectUnsupported);
        }
        let running = task_share.run(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to an endpoint ended");
            }
        });
        ambit_rt::spawn("http2 upstream", running);
        Ok(Checkout {
            sender: HttpSender::Http2(sender),
            key: key.clone(),
            usage: None,
            stream_slot: None,
            connection_failure: None,
        })
    }

    /// Counts an active request at an endpoint until the returned guard is dropped.
    pub(crate) fn count_request(&self, endpoint: SocketAddr) -> ActiveRequestGuard {
        let mut state = self.0.lock();
        let load = state.request_counts.entry(endpoint).or_default().clone();
        load.fetch_add(1, Relaxed);
        if state.request_counts.len() > state.cleanup_threshold.max(MAX_COUNTED_ENDPOINTS) {
            state
                .request_counts
                .retain(|_, load| load.load(Relaxed) > 0);
            state.cleanup_threshold = state.request_counts.len() * 2;
        }
        ActiveRequestGuard(load)
    }

    /// Returns the number of active requests at an endpoint.
    pub(crate) fn active_requests(&self, endpoint: SocketAddr) -> usize {
        let state = self.0.lock();
        state
            .request_counts
            .get(&endpoint)
            .map_or(0, |load| load.load(Relaxed))
    }

    fn return_idle(&self, key: HttpKey, connection: Http1Connection, life: ConnectionUse) {
        let mut state = self.0.lock();
        if !state.is_sweeping {
            state.is_sweeping = true;
            ambit_rt::spawn("http1 idle", self.clone().sweep());
        }
        state.idle.insert(key, connection, life);
    }

    /// Closes expired idle connections until the pool has none, so that an application without callers has no
    /// connections of the waypoint.
    async fn sweep(self) {
        loop {
            tokio::time::sleep(SWEEP_INTERVAL).await;
            let mut state = self.0.lock();
            state.idle.sweep();
            if state.idle.is_empty() {
                state.is_sweeping = false;
                return;
            }
        }
    }
}

/// Failure to send a request on its connection.
#[derive(Debug)]
pub(crate) struct SendError {
    pub(crate) error: hyper::Error,
    /// Request that can be retried, since nothing of it was sent.
    pub(crate) unsent_request: Option<Request<Body>>,
}

impl SendError {
    /// Whether an HTTP/1.1 connection, its TLS or its tunnel ended before the endpoint had sent the whole head of a
    /// response.
    pub(crate) fn is_closed_connection(&self) -> bool {
        let cause = self.error.source();
        let is_broken = cause.is_some_and(|cause| cause.is::<io::Error>());
        // The request's own body may fail with any error.
        self.error.is_incomplete_message() || (is_broken && !self.error.is_user())
    }

    /// Whether the HTTP/1.1 connection had ended, or ended as the request was sent.
    fn is_closing(&self) -> bool {
        self.unsent_request.is_some() || self.is_closed_connection()
    }

    /// Converts hyper's error. If nothing of the request was sent, the cause is the failure of its new connection, such
    /// as an endpoint that does not speak HTTP/2.
    async fn from_hyper(
        mut error: TrySendError<Request<Body>>,
        failure: Option<oneshot::Receiver<hyper::Error>>,
    ) -> Self {
        let unsent = error.take_message();
        let cause = match failure.filter(|_| unsent.is_some()) {
            Some(failure) => failure.await.ok(),
            None => None,
        };
        Self {
            error: cause.unwrap_or_else(|| error.into_error()),
            unsent_request: unsent,
        }
    }
}

impl From<TrySendError<Request<Body>>> for SendError {
    fn from(mut error: TrySendError<Request<Body>>) -> Self {
        Self {
            unsent_request: error.take_message(),
            error: error.into_error(),
        }
    }
}

impl Checkout {
    /// Sends a request on the connection. An HTTP/1.1 connection runs within the caller's CPU share, and returns to the
    /// pool when the response has been read.
    ///
    /// # Errors
    /// When sending fails; the error has the request if nothing of it was sent.
    pub(crate) async fn send(
        self,
        pool: &HttpPool,
        request: Request<Body>,
        share: Option<&FairShare>,
    ) -> Result<Response<Incoming>, SendError> {
        match self.sender {
            HttpSender::Http1(mut connection) => {
                let in_use = connection.activity.clone();
                in_use.share().set(share);
                // Before the response, dropping this future abandons the request; after it, dropping the guard does.
                let guard = in_use.begin_request();
                let additions = in_use.additions();
                let request = request.map(|body| match body.is_end_stream() {
                    true => body,
                    false => TrailersBody::new(body, additions, false).boxed_unsync(),
                });
                let sent = connection.sender.try_send_request(request).await;
                let mut response = match sent {
                    Ok(response) => response,
                    Err(error) => {
                        let error = SendError::from(error);
                        let idle_before = connection.idle_before.zip(self.usage);
                        if let Some((after, usage)) = idle_before.filter(|_| error.is_closing()) {
                            let idle = &mut pool.0.lock().idle;
                            idle.record_closing(&self.key, after, usage.limits);
                        }
                        return Err(error);
                    }
                };
                let (pool, key) = (pool.clone(), self.key);
                let life = self.usage.filter(|life| !life.is_expired());
                let life = life.map(|life| life.with_response_headers(response.headers()));
                if response.status() == http::StatusCode::SWITCHING_PROTOCOLS {
                    // After the switch, the stream's owner closes the connection.
                    in_use.end_request();
                    return Ok(response);
                }
                response.extensions_mut().insert(guard);
                ambit_rt::spawn("http1 reuse", async move {
                    if connection.sender.ready().await.is_err() {
                        return;
                    }
                    in_use.end_request();
                    if let Some(life) = life {
                        pool.return_idle(key, connection, life);
                    }
                });
                Ok(response)
            }
            HttpSender::Http2(mut sender) => {
                // Fails for a connection that has just been closed or is about to close.
                if let Err(error) = sender.ready().await {
                    tracing::debug!(%error, "a connection to an endpoint has ended");
                }
                let sent = sender.try_send_request(request).await;
                let mut response = match sent {
                    Ok(response) => response,
                    Err(error) => {
                        return Err(SendError::from_hyper(error, self.connection_failure).await);
                    }
                };
                if let Some(stream) = self.stream_slot {
                    response.extensions_mut().insert(stream);
                }
                Ok(response)
            }
        }
    }
}
