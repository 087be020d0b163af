//! Client side of an HBONE connection: performs the HTTP/2 handshake, and opens tunnels on the connection.

use std::{
    fmt,
    future::poll_fn,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Waker},
    time::Duration,
};

use ambit_model::FailureReason;
use h2::client::SendRequest;
use http::{HeaderMap, Method, Request, StatusCode, Uri, Version, response};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, timeout},
};

use crate::{
    Settings, Tunnel,
    gathered_writes::{GatheredWrites, WriteGatherer},
    lease::{ConnectionState, Liveness, Permit, StreamLease},
    pinger::Pinger,
    portioned_reads::{PortionEnd, PortionedReads, hbone_frame_budget},
    refusal,
    send_chunk::SendChunk,
    tls::HandshakeError,
    tunnel::StreamSlot,
    window_growth::WindowGrowth,
    windows::FlowControlWindows,
};

/// Maximum time for which tunnels to a removed workload continue while the workload still responds.
const REMOVED_PEER_DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

/// Error of a connection to a removed workload that exceeded [`REMOVED_PEER_DRAIN_TIMEOUT`].
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the peer was removed from the mesh {} s ago", REMOVED_PEER_DRAIN_TIMEOUT.as_secs())]
struct DrainTimeout;

/// Error of opening an HBONE connection, shared by all tunnels that waited for it.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// A step before connecting failed: fetching the certificate, or creating the socket.
    #[error("{text}")]
    Prepare {
        /// Description of the step that failed, for the error message.
        text: &'static str,
        /// Low-cardinality reason for metrics.
        reason: FailureReason,
        /// Error of the step that failed.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The TCP connection failed.
    #[error("cannot connect to {addr}")]
    Connect {
        /// Address of the peer.
        addr: SocketAddr,
        /// Error of the TCP connect call.
        #[source]
        source: io::Error,
    },
    /// The TCP connection was not established in time.
    #[error(
        "connection timed out, maybe a NetworkPolicy is blocking HBONE port {}: {addr} did not \
         answer within {limit:?}", addr.port()
    )]
    Timeout {
        /// Address of the peer.
        addr: SocketAddr,
        /// Timeout that elapsed.
        limit: Duration,
    },
    /// The TLS handshake failed.
    #[error("cannot agree on TLS with {addr}")]
    Tls {
        /// Address of the peer.
        addr: SocketAddr,
        /// Error of the TLS handshake.
        #[source]
        source: HandshakeError,
    },
    /// The HTTP/2 handshake failed.
    #[error("http2 handshake failed with {addr}")]
    Http2 {
        /// Address of the peer.
        addr: SocketAddr,
        /// Error of the HTTP/2 handshake.
        #[source]
        source: Http2Error,
    },
}

impl DialError {
    /// Returns the low-cardinality reason for metrics.
    pub fn reason(&self) -> FailureReason {
        match self {
            Self::Prepare { reason, .. } => *reason,
            Self::Connect { .. } => FailureReason::Connect,
            Self::Timeout { .. } => FailureReason::NetworkPolicy,
            Self::Tls { source, .. } => source.reason(),
            Self::Http2 { .. } => FailureReason::H2Failure,
        }
    }
}

/// Error of the HTTP/2 handshake.
#[derive(Debug, thiserror::Error)]
pub enum Http2Error {
    /// The peer did not respond within this time.
    #[error("the peer took longer than {0:?}")]
    Timeout(Duration),
    /// The peer violated the protocol, or disconnected.
    #[error(transparent)]
    Protocol(#[from] h2::Error),
}

/// Error of opening a tunnel.
#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    /// No connection could be opened for the tunnel.
    #[error("{0}")]
    Dial(#[source] Arc<DialError>),
    /// The CONNECT request could not be built from the authority and headers.
    #[error("the CONNECT request is not valid")]
    Request(#[source] http::Error),
    /// The tunnel's HTTP/2 stream or its connection failed before the CONNECT response.
    #[error("the tunnel's stream failed")]
    Stream(#[source] h2::Error),
    /// The peer refused the tunnel with this status.
    #[error("http status: {0}")]
    Status(StatusCode),
    /// The peer refused the tunnel with this status, and named the policies that deny it.
    #[error("policy {policies} of the workload refused the tunnel (http status: {status})")]
    Denied {
        /// Status of the response.
        status: StatusCode,
        /// Names of the policies that deny the tunnel, as `namespace/name`, separated by commas.
        policies: String,
    },
    /// The proxy is draining and opens no more tunnels.
    #[error("pool draining")]
    Draining,
}

impl TunnelError {
    /// Returns the low-cardinality reason for metrics.
    pub fn reason(&self) -> FailureReason {
        match self {
            Self::Dial(error) => error.reason(),
            Self::Stream(_) | Self::Request(_) => FailureReason::H2Failure,
            Self::Status(_) | Self::Denied { .. } | Self::Draining => FailureReason::Connect,
        }
    }

    /// Whether the error may pass within seconds: the peer is unreachable, or not ready yet.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Dial(error) => match &**error {
                DialError::Connect { .. } | DialError::Timeout { .. } | DialError::Http2 { .. } => {
                    true
                }
                DialError::Tls { source, .. } => source.is_connection_closed(),
                DialError::Prepare { .. } => false,
            },
            Self::Stream(error) => is_unprocessed(error),
            Self::Status(status) => *status == StatusCode::SERVICE_UNAVAILABLE,
            Self::Request(_) | Self::Denied { .. } | Self::Draining => false,
        }
    }

    /// Whether the tunnel may be retried on another connection, since the peer has processed neither the request nor
    /// application data. On a `fresh` connection, which was opened for this tunnel, only a peer that disconnected
    /// without an error permits a retry: a refusal would be repeated.
    pub(crate) fn is_retryable(&self, fresh: bool) -> bool {
        match self {
            Self::Stream(error) if fresh => is_connection_closed(error),
            Self::Stream(error) => is_unprocessed(error),
            Self::Dial(error) => match error.as_ref() {
                DialError::Tls { source, .. } => source.is_connection_closed(),
                DialError::Http2 {
                    source: Http2Error::Protocol(error),
                    ..
                } => is_connection_closed(error),
                _ => false,
            },
            _ => false,
        }
    }
}

/// Returns the error for a response that refuses a tunnel.
fn refusal_error(parts: &response::Parts) -> TunnelError {
    let status = parts.status;
    let policies =
        refusal::policies_in_header(&parts.headers).filter(|_| status == StatusCode::UNAUTHORIZED);
    match policies {
        Some(policies) => TunnelError::Denied { status, policies },
        None => TunnelError::Status(status),
    }
}

/// Whether the peer did not process the stream: the connection ended before, or the peer refused the stream (GOAWAY,
/// REFUSED_STREAM). Resets with other codes may come from the connection behind an accepted tunnel.
fn is_unprocessed(error: &h2::Error) -> bool {
    error.is_go_away() || error.is_io() || error.reason() == Some(h2::Reason::REFUSED_STREAM)
}

fn is_connection_closed(error: &h2::Error) -> bool {
    error
        .get_io()
        .is_some_and(crate::relay::is_disconnect_error)
}

/// HBONE connection on which tunnels can be opened. It closes when this value and all its tunnels are dropped.
pub struct ClientConnection {
    send: SendRequest<SendChunk>,
    shared: Arc<ConnectionState>,
    max_streams: usize,
}

impl fmt::Debug for ClientConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConnection")
            .field("streams", &self.stream_count())
            .finish_non_exhaustive()
    }
}

impl ClientConnection {
    /// Returns the number of open tunnels on the connection.
    pub fn stream_count(&self) -> usize {
        self.shared.streams.load(Ordering::Relaxed)
    }

    /// Whether the stream limits of both peers permit one more tunnel on the connection.
    pub fn has_room(&self) -> bool {
        self.stream_count() < self.max_streams.min(self.send.current_max_send_streams())
    }

    /// Whether the connection is stalled: flow control blocks all tunnels that have data to send. Stalled streams may
    /// hold the whole connection window, so that another tunnel would stall as well.
    pub(crate) fn is_stalled(&self) -> bool {
        self.shared.is_stalled()
    }

    /// Whether the connection accepts new tunnels; false after GOAWAY, an error, the idle timeout, or the removal of
    /// its peer.
    pub fn is_open(&mut self) -> bool {
        !self.shared.is_retired.load(Ordering::Relaxed)
            && !matches!(
                self.send
                    .poll_ready(&mut Context::from_waker(Waker::noop())),
                Poll::Ready(Err(_))
            )
    }

    /// Returns the connection's state that it shares with its driver and its tunnels.
    pub(crate) fn state(&self) -> &ConnectionState {
        &self.shared
    }

    /// Sets the liveness of the workload at the other end of the connection.
    pub fn set_liveness(&self, liveness: Liveness) {
        self.shared.set_liveness(liveness);
    }

    /// Opens a tunnel on this connection.
    ///
    /// # Errors
    ///
    /// When the peer refuses the tunnel, or the connection fails.
    pub async fn open_tunnel(
        &self,
        authority: Uri,
        headers: HeaderMap,
    ) -> Result<(Tunnel, response::Parts), TunnelError> {
        open_tunnel(self.lease_stream(), authority, headers).await
    }

    /// Reserves a stream slot for one tunnel.
    pub(crate) fn lease_stream(&self) -> (SendRequest<SendChunk>, StreamLease) {
        (self.send.clone(), StreamLease::acquire(&self.shared))
    }
}

/// Guard in the connection's [`Driver`] that retires the connection on drop, also after a panic, and releases its permit.
/// A retired connection takes no new tunnels.
struct RetireOnDrop(Arc<ConnectionState>);

impl Drop for RetireOnDrop {
    fn drop(&mut self) {
        self.0.is_retired.store(true, Ordering::Relaxed);
        self.0.release_permit();
    }
}

/// Task that drives the HTTP/2 protocol of one connection. The caller must spawn [`Self::run`], which ends with the
/// connection.
pub struct Driver<IO: AsyncRead + AsyncWrite + Unpin> {
    connection: h2::client::Connection<PortionedReads<GatheredWrites<IO>>, SendChunk>,
    gatherer: WriteGatherer,
    portion_end: PortionEnd,
    pinger: Pinger,
    shared: Arc<ConnectionState>,
    windows: FlowControlWindows,
    growth: WindowGrowth,
    idle_timeout: Duration,
    /// Peer liveness that was last passed to `pinger`.
    liveness: Liveness,
    /// Deadline for closing the connection to a removed workload; `None` while the workload exists.
    close_at: Option<Instant>,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> fmt::Debug for Driver<IO> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("shared", &self.shared)
            .finish_non_exhaustive()
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Driver<IO> {
    /// Makes the driver release `permit` when the connection ends.
    pub(crate) fn with_permit(self, permit: Option<Box<dyn Permit>>) -> Self {
        self.shared.set_permit(permit);
        self
    }

    /// Drives the connection until it ends. Calls `on_idle` after the idle timeout without a new tunnel, so that the
    /// owner drops the connection.
    pub async fn run(mut self, mut on_idle: impl FnMut()) {
        let _retire = RetireOnDrop(self.shared.clone());
        let result = poll_fn(|cx| {
            let Self {
                connection,
                gatherer,
                portion_end,
                pinger,
                shared,
                windows,
                growth,
                idle_timeout: idle_release,
                liveness,
                close_at,
            } = &mut self;
            shared.driver_waker.register(cx.waker());
            let now = shared.liveness();
            if *liveness != now {
                *liveness = now;
                pinger.adapt_to_liveness(now);
                *close_at =
                    (now == Liveness::Removed).then(|| Instant::now() + REMOVED_PEER_DRAIN_TIMEOUT);
            }
            // The peer must acknowledge one change before the next: the following iteration
            // compares again.
            let streams = shared.streams.load(Ordering::Relaxed);
            if let Some(window) = windows.grown_connection_window(streams) {
                connection.set_target_window_size(window);
            }
            if let Some(window) = windows.next_stream_window(streams)
                && connection.set_initial_window_size(window).is_ok()
            {
                windows.set_announced_stream_window(window);
            }
            let dead = pinger.poll(cx, || {
                if shared.idle_time() >= *idle_release && !shared.is_retired.load(Ordering::Relaxed)
                {
                    shared.is_retired.store(true, Ordering::Relaxed);
                    on_idle();
                }
            });
            if let Poll::Ready(timeout) = dead {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, timeout)));
            }
            // The pinger's timer wakes this loop at least once a second.
            if close_at.is_some_and(|close_at| close_at <= Instant::now()) {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, DrainTimeout)));
            }
            let ended = gatherer.poll(|| Pin::new(&mut *connection).poll(cx));
            if portion_end.take() {
                shared.byte_receivers.take_received();
                let grown = shared.change_permit(|permit| growth.count_portion(windows, permit));
                if let Some(window) = grown {
                    connection.set_target_window_size(window);
                }
            }
            ended.map_err(io::Error::other)
        })
        .await;
        if let Err(error) = result {
            tracing::debug!(%error, "an HBONE connection ended");
        }
    }
}

/// Performs the HTTP/2 handshake as a client on an established TLS connection.
///
/// # Errors
///
/// When the peer does not complete the handshake in time.
pub async fn handshake<IO: AsyncRead + AsyncWrite + Unpin>(
    io: IO,
    settings: &Settings,
) -> Result<(ClientConnection, Driver<IO>), Http2Error> {
    let windows = FlowControlWindows::new(settings, settings.max_streams);
    let frame_budget = hbone_frame_budget(windows.connection_window(0));
    let io = GatheredWrites::new(io);
    let gatherer = io.gatherer();
    let io = PortionedReads::with_budget(io, frame_budget);
    let (portion_end, growth) = (io.portion_end(), WindowGrowth::new(io.portion()));
    let mut builder = h2::client::Builder::new();
    builder
        .initial_window_size(windows.initial_stream_window())
        .initial_connection_window_size(windows.connection_window(0))
        .max_frame_size(settings.max_frame_bytes)
        .max_header_list_size(settings.max_response_header_bytes)
        .data_frame_budget(frame_budget)
        .initial_max_send_streams(settings.max_streams)
        .max_concurrent_reset_streams(settings.max_streams)
        .max_send_buffer_size(settings.max_send_buffer_bytes)
        .enable_push(false);
    let limit = settings.handshake_timeout;
    let (send, mut connection) = timeout(limit, builder.handshake(io))
        .await
        .map_err(|_| Http2Error::Timeout(limit))??;
    let pinger = Pinger::new(connection.ping_pong(), settings);
    let shared = Arc::new(ConnectionState::new());
    let client = ClientConnection {
        send,
        shared: shared.clone(),
        max_streams: settings.max_streams,
    };
    Ok((
        client,
        Driver {
            connection,
            gatherer,
            portion_end,
            pinger,
            shared,
            windows,
            growth,
            idle_timeout: settings.idle_timeout,
            liveness: Liveness::default(),
            close_at: None,
        },
    ))
}

/// Opens one tunnel to `authority` on a leased connection.
pub(crate) async fn open_tunnel(
    (mut send, lease): (SendRequest<SendChunk>, StreamLease),
    authority: Uri,
    headers: HeaderMap,
) -> Result<(Tunnel, response::Parts), TunnelError> {
    let mut request = Request::builder()
        .method(Method::CONNECT)
        .version(Version::HTTP_2)
        .uri(authority)
        .body(())
        .map_err(TunnelError::Request)?;
    *request.headers_mut() = headers;
    poll_fn(|cx| send.poll_ready(cx))
        .await
        .map_err(TunnelError::Stream)?;
    let (answer, stream) = send
        .send_request(request, false)
        .map_err(TunnelError::Stream)?;
    // The connection must be able to end when its owner and its tunnels drop it.
    drop(send);
    let (parts, body) = answer.await.map_err(TunnelError::Stream)?.into_parts();
    if parts.status != StatusCode::OK {
        return Err(refusal_error(&parts));
    }
    Ok((Tunnel::new(stream, body, StreamSlot::Client(lease)), parts))
}
