//! Small HTTP/1.1 server for admin, metrics, readiness and the plugin's socket.
//!
//! A handler receives requests with their complete bodies, within limits; responses are complete, or a stream of
//! chunks. Peers are untrusted: connections, headers, bodies and waiting times are bounded.

mod log_level;
mod response;

use std::{
    convert::Infallible,
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

pub use response::{
    Body, Response, json, json_pretty, method_not_allowed, not_found, query_parameter,
    query_parameters, respond, stream, text,
};

use crate::{DrainWatcher, Slot, SlotLimits, Slots, spawn};

/// Number of an address's connections that other addresses' connections never displace.
const PROTECTED_CONNECTIONS_PER_ADDRESS: usize = 4;

/// Time for which the sockets of a killed predecessor process may still be in use.
const PREDECESSOR_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval at which binding to an address that is still in use is retried.
const BIND_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// HTTP request with its complete body.
pub type Request = ::http::Request<Bytes>;

/// Limits of an HTTP server.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// Whether to serve only peers on this machine, and only names of this machine in `Host`, so that a web page
    /// cannot reach the server through a name that resolves to 127.0.0.1.
    pub loopback_only: bool,
    /// Maximum size of a request body in bytes; larger bodies get 413.
    pub max_body: usize,
    /// Maximum concurrent connections; further ones wait in the kernel's accept queue.
    pub max_connections: usize,
    /// Maximum connections of one address; another connection displaces the address's oldest (see [`Slots`]), so that a
    /// slow or greedy peer does not block other peers' probes and scrapes.
    pub max_per_address: usize,
    /// Timeout for receiving a request's headers, and its body.
    pub read_timeout: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            loopback_only: false,
            max_body: 64 * 1024,
            max_connections: 256,
            max_per_address: 32,
            read_timeout: Duration::from_secs(10),
        }
    }
}

impl ServerOptions {
    /// Returns the options of admin servers on loopback.
    pub fn loopback() -> Self {
        let options = Self::default();
        Self {
            loopback_only: true,
            max_per_address: options.max_connections,
            ..options
        }
    }
}

/// Address of a request's sender over TCP, an extension of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

impl Peer {
    /// Returns whether a request came over loopback or a Unix socket, that is, from this machine or from inside the
    /// process's network namespace.
    pub fn is_local(request: &Request) -> bool {
        let peer = request.extensions().get::<Self>();
        peer.is_none_or(|Self(address)| address.ip().to_canonical().is_loopback())
    }

    /// Whether a request [is local](Self::is_local) and its `Host` names this machine, so that no web page of another
    /// origin sent it.
    pub fn is_local_with_local_host(request: &Request) -> bool {
        Self::is_local(request) && has_local_host_header(request)
    }
}

/// Listener from which an HTTP server accepts connections.
pub trait Listen: Send + 'static {
    /// Connection of a client.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// Accepts the next connection; also returns its peer's address, if it has one.
    fn next(&self) -> impl Future<Output = io::Result<(Self::Stream, Option<SocketAddr>)>> + Send;
}

impl Listen for TcpListener {
    type Stream = tokio::net::TcpStream;
    async fn next(&self) -> io::Result<(Self::Stream, Option<SocketAddr>)> {
        let (stream, peer) = self.accept().await?;
        Ok((stream, Some(peer)))
    }
}

impl Listen for UnixListener {
    type Stream = tokio::net::UnixStream;
    async fn next(&self) -> io::Result<(Self::Stream, Option<SocketAddr>)> {
        let (stream, _) = self.accept().await?;
        Ok((stream, None))
    }
}

/// Serves HTTP connections until the drain starts; requests in flight are finished.
///
/// `name` appears in logs. The handler responds to every request, including those for unknown paths.
pub async fn serve<L, H, F>(
    name: &'static str,
    listener: L,
    options: ServerOptions,
    mut drain: DrainWatcher,
    handler: H,
) where
    L: Listen,
    H: Fn(Request) -> F + Send + Sync + 'static,
    F: Future<Output = Response> + Send + 'static,
{
    let handler = Arc::new(handler);
    let permits = Arc::new(Semaphore::new(options.max_connections));
    let slots = Slots::new(SlotLimits {
        total: options.max_connections,
        per_source: options.max_per_address,
        protected_per_source: PROTECTED_CONNECTIONS_PER_ADDRESS,
    });
    loop {
        let accepted = tokio::select! {
            accepted = listener.next() => accepted,
            _ = drain.wait_until_started() => return,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, or a peer that went away: neither ends the server.
                tracing::debug!(server = name, %error, "accept failed");
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        if options.loopback_only && peer.is_some_and(|peer| !peer.ip().to_canonical().is_loopback())
        {
            continue;
        }
        let admit = async {
            match peer {
                Some(peer) => ConnectionSlot::Slot(slots.acquire(peer.ip()).await),
                None => ConnectionSlot::Permit(permits.clone().acquire_owned().await.ok()),
            }
        };
        let mut admitted = tokio::select! {
            admitted = admit => admitted,
            _ = drain.wait_until_started() => return,
        };
        let served = serve_connection(
            name,
            (stream, peer),
            options,
            drain.clone(),
            handler.clone(),
        );
        spawn(name, async move {
            tokio::select! {
                () = served => {}
                () = admitted.wait_until_evicted() => {
                    tracing::debug!(server = name, ?peer, "closed: its address has opened too many");
                }
            }
        });
    }
}

/// Slot or permit that a connection holds while it is served.
enum ConnectionSlot {
    /// Slot of a TCP connection, among those of all addresses.
    Slot(Slot),
    /// Permit of a connection over a Unix socket.
    Permit(#[expect(dead_code, reason = "held")] Option<OwnedSemaphorePermit>),
}

impl ConnectionSlot {
    async fn wait_until_evicted(&mut self) {
        match self {
            Self::Slot(slot) => slot.wait_until_evicted().await,
            Self::Permit(_) => std::future::pending().await,
        }
    }
}

async fn serve_connection<S, H, F>(
    name: &'static str,
    (stream, peer): (S, Option<SocketAddr>),
    options: ServerOptions,
    mut drain: DrainWatcher,
    handler: Arc<H>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Fn(Request) -> F + Send + Sync + 'static,
    F: Future<Output = Response> + Send + 'static,
{
    let service = service_fn(move |mut request: ::http::Request<Incoming>| {
        let handler = handler.clone();
        if let Some(peer) = peer {
            request.extensions_mut().insert(Peer(peer));
        }
        async move { Ok::<_, Infallible>(handle_request(request, options, &*handler).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(options.read_timeout)
        .max_headers(100)
        .max_buf_size(64 * 1024)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let mut draining = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(server = name, %error, "connection ended");
                }
                return;
            }
            _ = drain.wait_until_started(), if !draining => {
                draining = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

async fn handle_request<H, F>(
    request: ::http::Request<Incoming>,
    options: ServerOptions,
    handler: &H,
) -> Response
where
    H: Fn(Request) -> F,
    F: Future<Output = Response>,
{
    if options.loopback_only && !has_local_host_header(&request) {
        return text(
            403,
            "this server answers only to names of its own machine\n",
        );
    }
    if options.loopback_only && !is_same_origin(&request) {
        return text(403, "this server answers no pages of other origins\n");
    }
    let (head, body) = request.into_parts();
    let body = Limited::new(body, options.max_body).collect();
    match tokio::time::timeout(options.read_timeout, body).await {
        Ok(Ok(body)) => handler(Request::from_parts(head, body.to_bytes())).await,
        Ok(Err(error)) if error.is::<LengthLimitError>() => text(413, "body too large\n"),
        Ok(Err(_)) => text(400, "body could not be read\n"),
        Err(_) => text(408, "body took too long\n"),
    }
}

/// Whether `Host` is absent, `localhost` or a loopback address.
fn has_local_host_header<B>(request: &::http::Request<B>) -> bool {
    let Some(host) = request.headers().get(::http::header::HOST) else {
        return true;
    };
    let Some(host) = host
        .to_str()
        .ok()
        .and_then(|host| host.parse::<::http::uri::Authority>().ok())
    else {
        return false;
    };
    let host = host.host().trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || host
            .parse::<IpAddr>()
            .is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// Returns whether the request's headers name no web page of another origin: such a page could send a POST to any port
/// that its user's machine forwards to this server.
fn is_same_origin<B>(request: &::http::Request<B>) -> bool {
    let headers = request.headers();
    let is_cross_site = headers
        .get("sec-fetch-site")
        .is_some_and(|site| site != "same-origin" && site != "none");
    let is_foreign = headers.get(::http::header::ORIGIN).is_some_and(|origin| {
        let authority = origin.as_bytes().strip_prefix(b"http://");
        let host = headers.get(::http::header::HOST);
        authority.is_none() || authority != host.map(|host| host.as_bytes())
    });
    !is_cross_site && !is_foreign
}

/// Error of listening on a server's address.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for {purpose}")]
pub struct ListenError {
    /// Address on which the server cannot listen.
    pub address: SocketAddr,
    /// Purpose of the server, for instance "metrics".
    pub purpose: &'static str,
    /// Cause of the error.
    #[source]
    pub source: io::Error,
}

/// Listens on an address, naming the purpose in the error.
pub async fn bind(address: SocketAddr, purpose: &'static str) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| ListenError {
            address,
            purpose,
            source,
        })
}

/// Listens like [`bind`], but retries for up to [`PREDECESSOR_TIMEOUT`] if the address is in use. The sockets of a
/// killed process stay open in children that it had just forked, until the children exec.
///
/// # Errors
///
/// As [`bind`]; also if the address is in use for longer than [`PREDECESSOR_TIMEOUT`].
pub async fn bind_after_predecessor(
    address: SocketAddr,
    purpose: &'static str,
) -> Result<TcpListener, ListenError> {
    let end = Instant::now() + PREDECESSOR_TIMEOUT;
    loop {
        match bind(address, purpose).await {
            Err(error)
                if error.source.kind() == io::ErrorKind::AddrInUse && Instant::now() < end =>
            {
                tokio::time::sleep(BIND_RETRY_INTERVAL).await;
            }
            bound => return bound,
        }
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
