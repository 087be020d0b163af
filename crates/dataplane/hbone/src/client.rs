//! The client side of an HBONE connection: sets it up, and opens tunnels on it.

use std::{
    fmt,
    future::poll_fn,
    io,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Waker},
    time::Duration,
};

use ambit_model::Reason;
use h2::client::SendRequest;
use http::{HeaderMap, Method, Request, StatusCode, Uri, Version, response};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, timeout},
};

use crate::{
    Settings, Tunnel,
    lease::{Lease, Liveness, Permit, Shared},
    piece::Piece,
    pinger::Pinger,
    refusal,
    tls::HandshakeError,
    tunnel::Slot,
    windows::Windows,
};

/// Maximum time for which tunnels to a removed workload continue while it responds.
const GONE_DRAIN: Duration = Duration::from_secs(60);

/// Error of a connection to a removed workload that exceeded [`GONE_DRAIN`].
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the peer was removed from the mesh {} s ago", GONE_DRAIN.as_secs())]
struct DrainTimeout;

/// Why a connection could not be set up. Shared by all its waiters.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// A step before connecting failed: the certificate, the socket.
    #[error("{text}")]
    Prepare {
        /// Description of the step.
        text: &'static str,
        /// Low-cardinality reason for metrics.
        reason: Reason,
        /// Cause of the error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The TCP connection failed.
    #[error("cannot connect to {addr}")]
    Connect {
        /// Address of the peer.
        addr: SocketAddr,
        /// Cause of the error.
        #[source]
        source: io::Error,
    },
    /// Timeout of the TCP connection.
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
        /// Cause of the error.
        #[source]
        source: HandshakeError,
    },
    /// The HTTP/2 handshake failed.
    #[error("http2 handshake failed with {addr}")]
    Http2 {
        /// Address of the peer.
        addr: SocketAddr,
        /// Cause of the error.
        #[source]
        source: Http2Error,
    },
}

impl DialError {
    /// Returns the low-cardinality reason for metrics.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Prepare { reason, .. } => *reason,
            Self::Connect { .. } => Reason::Connect,
            Self::Timeout { .. } => Reason::NetworkPolicy,
            Self::Tls { source, .. } => source.reason(),
            Self::Http2 { .. } => Reason::H2Failure,
        }
    }
}

/// Why HTTP/2 could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Http2Error {
    /// Timeout of the peer's response.
    #[error("the peer took longer than {0:?}")]
    Timeout(Duration),
    /// The peer broke the protocol, or went away.
    #[error(transparent)]
    Protocol(#[from] h2::Error),
}

/// Why a tunnel could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    /// No connection could be opened for the tunnel.
    #[error("{0}")]
    Dial(#[source] Arc<DialError>),
    /// The request could not be built from these headers.
    #[error("the CONNECT request is not valid")]
    Request(#[source] http::Error),
    /// Failure of the stream or its connection before a response.
    #[error("the tunnel's stream failed")]
    Stream(#[source] h2::Error),
    /// Response status of the peer.
    #[error("http status: {0}")]
    Status(StatusCode),
    /// The peer answered with this status, and named the policies of the workload that refuse the tunnel.
    #[error("policy {policies} of the workload refused the tunnel (http status: {status})")]
    Denied {
        /// Status of the response.
        status: StatusCode,
        /// Names of the policies.
        policies: String,
    },
    /// The proxy is draining and opens no more tunnels.
    #[error("pool draining")]
    Draining,
}

impl TunnelError {
    /// Returns the low-cardinality reason for metrics.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Dial(error) => error.reason(),
            Self::Stream(_) | Self::Request(_) => Reason::H2Failure,
            Self::Status(_) | Self::Denied { .. } | Self::Draining => Reason::Connect,
        }
    }

    /// Whether the failure may be transient: the peer is unreachable, or does not serve yet.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Dial(error) => match &**error {
                DialError::Connect { .. } | DialError::Timeout { .. } | DialError::Http2 { .. } => {
                    true
                }
                DialError::Tls { source, .. } => source.is_cut_off(),
                DialError::Prepare { .. } => false,
            },
            Self::Stream(error) => is_unprocessed(error),
            Self::Status(status) => *status == StatusCode::SERVICE_UNAVAILABLE,
            Self::Request(_) | Self::Denied { .. } | Self::Draining => false,
        }
    }

    /// Whether the peer has processed nothing of the request, or no application data, so that
    /// another connection may be tried. On a `fresh` connection only if the peer closed it without
    /// an error, since it would repeat a refusal.
    pub(crate) fn is_retryable(&self, fresh: bool) -> bool {
        match self {
            Self::Stream(error) if fresh => is_cut_off(error),
            Self::Stream(error) => is_unprocessed(error),
            Self::Dial(error) => match error.as_ref() {
                DialError::Tls { source, .. } => source.is_cut_off(),
                DialError::Http2 {
                    source: Http2Error::Protocol(error),
                    ..
                } => is_cut_off(error),
                _ => false,
            },
            _ => false,
        }
    }
}

/// The error of a response that refuses a tunnel.
fn refused(parts: &response::Parts) -> TunnelError {
    let status = parts.status;
    let policies = refusal::named(&parts.headers).filter(|_| status == StatusCode::UNAUTHORIZED);
    match policies {
        Some(policies) => TunnelError::Denied { status, policies },
        None => TunnelError::Status(status),
    }
}

/// Whether the connection went away under a stream, or the peer refused the stream unprocessed. A
/// reset with another code may come from the connection behind an accepted tunnel.
fn is_unprocessed(error: &h2::Error) -> bool {
    error.is_go_away() || error.is_io() || error.reason() == Some(h2::Reason::REFUSED_STREAM)
}

fn is_cut_off(error: &h2::Error) -> bool {
    error.get_io().is_some_and(crate::relay::is_gone)
}

/// An HBONE connection on which tunnels can be opened. The connection closes when this and all its
/// tunnels are gone.
pub struct ClientConnection {
    send: SendRequest<Piece>,
    shared: Arc<Shared>,
    max_streams: usize,
}

impl fmt::Debug for ClientConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConnection")
            .field("streams", &self.streams())
            .finish_non_exhaustive()
    }
}

impl ClientConnection {
    /// The number of its tunnels.
    pub fn streams(&self) -> usize {
        self.shared.streams.load(Ordering::Relaxed)
    }

    /// Whether one more tunnel fits.
    pub fn has_room(&self) -> bool {
        self.streams() < self.max_streams.min(self.send.current_max_send_streams())
    }

    /// Whether the peer lets none of the tunnels send that have something to send: stalled streams may hold the
    /// whole window of the connection, and a further tunnel would stall with them.
    pub(crate) fn is_stalled(&self) -> bool {
        self.shared.is_stalled()
    }

    /// Whether the connection accepts tunnels: not after GOAWAY, an error, or a long idle time.
    pub fn is_open(&mut self) -> bool {
        !self.shared.retired.load(Ordering::Relaxed)
            && !matches!(
                self.send
                    .poll_ready(&mut Context::from_waker(Waker::noop())),
                Poll::Ready(Err(_))
            )
    }

    /// Records the liveness of the workload at the other end.
    pub fn set_liveness(&self, liveness: Liveness) {
        self.shared.set_liveness(liveness);
    }

    /// Opens a tunnel on this connection.
    ///
    /// # Errors
    /// When the peer refuses it, or the connection fails.
    pub async fn tunnel(
        &self,
        authority: Uri,
        headers: HeaderMap,
    ) -> Result<(Tunnel, response::Parts), TunnelError> {
        open_tunnel(self.lease(), authority, headers).await
    }

    /// Reserves a slot for one tunnel.
    pub(crate) fn lease(&self) -> (SendRequest<Piece>, Lease) {
        (self.send.clone(), Lease::take(&self.shared))
    }
}

/// Retires a connection when its driver ends, also by a panic, so that it takes no more tunnels.
struct Retire(Arc<Shared>);

impl Drop for Retire {
    fn drop(&mut self) {
        self.0.retired.store(true, Ordering::Relaxed);
    }
}

/// Runs a connection's protocol; to be spawned. Ends with the connection.
pub struct Driver<IO: AsyncRead + AsyncWrite + Unpin> {
    connection: h2::client::Connection<IO, Piece>,
    pinger: Pinger,
    shared: Arc<Shared>,
    windows: Windows,
    idle_release: Duration,
    /// The peer's health that `pinger` follows.
    liveness: Liveness,
    /// Time at which the connection of a removed peer is closed.
    ends: Option<Instant>,
    /// Dropped with the connection.
    _permit: Option<Box<dyn Permit>>,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> fmt::Debug for Driver<IO> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("shared", &self.shared)
            .finish_non_exhaustive()
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Driver<IO> {
    /// Drops `permit` when the connection ends.
    pub(crate) fn holding(self, permit: Option<Box<dyn Permit>>) -> Self {
        Self {
            _permit: permit,
            ..self
        }
    }

    /// Drives the connection until it ends. `on_idle` runs when it has served no new tunnel for so long
    /// that its owner should drop it.
    pub async fn run(mut self, mut on_idle: impl FnMut()) {
        let _retire = Retire(self.shared.clone());
        let result = poll_fn(|cx| {
            let Self {
                connection,
                pinger,
                shared,
                windows,
                idle_release,
                liveness,
                ends,
                _permit: _,
            } = &mut self;
            shared.driver.register(cx.waker());
            let now = shared.liveness();
            if *liveness != now {
                *liveness = now;
                pinger.follow(now);
                *ends = (now == Liveness::Gone).then(|| Instant::now() + GONE_DRAIN);
            }
            // The peer must acknowledge one change before the next: the following iteration
            // compares again.
            let streams = shared.streams.load(Ordering::Relaxed);
            if let Some(window) = windows.grown(streams) {
                connection.set_target_window_size(window);
            }
            if let Some(window) = windows.next(streams)
                && connection.set_initial_window_size(window).is_ok()
            {
                windows.announce(window);
            }
            let dead = pinger.poll(cx, || {
                if shared.idle_for() >= *idle_release && !shared.retired.load(Ordering::Relaxed) {
                    shared.retired.store(true, Ordering::Relaxed);
                    on_idle();
                }
            });
            if let Poll::Ready(timeout) = dead {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, timeout)));
            }
            // The pinger's timer wakes this loop at least once a second.
            if ends.is_some_and(|ends| ends <= Instant::now()) {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, DrainTimeout)));
            }
            std::pin::Pin::new(connection)
                .poll(cx)
                .map_err(io::Error::other)
        })
        .await;
        if let Err(error) = result {
            tracing::debug!(%error, "an HBONE connection ended");
        }
    }
}

/// Sets up HTTP/2 as a client on an established connection.
///
/// # Errors
/// When the peer does not accept our preface in time.
pub async fn handshake<IO: AsyncRead + AsyncWrite + Unpin>(
    io: IO,
    settings: &Settings,
) -> Result<(ClientConnection, Driver<IO>), Http2Error> {
    let windows = Windows::new(settings, settings.max_streams);
    let mut builder = h2::client::Builder::new();
    builder
        .initial_window_size(windows.initial())
        .initial_connection_window_size(windows.connection(0))
        .max_frame_size(settings.frame_size)
        .max_header_list_size(settings.max_response_headers)
        .initial_max_send_streams(settings.max_streams)
        .max_concurrent_reset_streams(settings.max_streams)
        .max_send_buffer_size(settings.send_buffer)
        .enable_push(false);
    let limit = settings.handshake_timeout;
    let (send, mut connection) = timeout(limit, builder.handshake(io))
        .await
        .map_err(|_| Http2Error::Timeout(limit))??;
    let pinger = Pinger::new(connection.ping_pong(), settings);
    let shared = Arc::new(Shared::new());
    let client = ClientConnection {
        send,
        shared: shared.clone(),
        max_streams: settings.max_streams,
    };
    Ok((
        client,
        Driver {
            connection,
            pinger,
            shared,
            windows,
            idle_release: settings.idle_release,
            liveness: Liveness::default(),
            ends: None,
            _permit: None,
        },
    ))
}

/// Opens one tunnel to `authority` on a leased connection.
pub(crate) async fn open_tunnel(
    (mut send, lease): (SendRequest<Piece>, Lease),
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
        return Err(refused(&parts));
    }
    Ok((Tunnel::new(stream, body, Slot::Client(lease)), parts))
}
