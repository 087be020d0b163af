//! Accepts TLS connections of unauthenticated callers, within limits.

use std::{
    fmt, io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use ambit_rt::{
    DrainWatcher, Slot, SlotLimits,
    handshakes::{self, AdmittedConnection, AdmittedListener, HandshakeLimits},
};
use ambit_tls::{ALPN_H2, TlsSettings};
use rustls::ServerConfig;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_stream::Stream;
use tonic::transport::server::Connected;

pub use ambit_rt::handshakes::HandshakeCloseReason;

/// Limits of connections that are in their handshake, or without an authenticated call.
const HANDSHAKE_LIMITS: HandshakeLimits = HandshakeLimits {
    slots: SlotLimits {
        total: 1024,
        per_source: 32,
        protected_per_source: 4,
    },
    per_second: 20,
    burst: 100,
    timeout: Duration::from_secs(10),
    queue: 16,
};

/// Returns the TLS server configuration, without client certificates: callers authenticate with tokens.
pub fn server_config(
    settings: &TlsSettings,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(settings.provider())
        .with_protocol_versions(settings.protocol_versions())?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    Ok(Arc::new(config))
}

/// Peer of a connection, in the extensions of its requests.
#[derive(Clone, Copy, Debug)]
pub struct PeerInfo {
    /// Source address of the connection.
    pub address: Option<SocketAddr>,
}

/// Connection whose TLS handshake is complete.
#[derive(Debug)]
pub struct TlsConnection {
    stream: TlsStream<TcpStream>,
    /// Slot among the unauthenticated connections, until the server takes it.
    slot: Option<Slot>,
}

impl TlsConnection {
    /// Takes the connection's slot among the unauthenticated connections. The server releases it after authenticating
    /// the caller, and closes the connection when a newer one of the same address takes the slot.
    pub fn take_slot(&mut self) -> Option<Slot> {
        self.slot.take()
    }
}

impl Connected for TlsConnection {
    type ConnectInfo = PeerInfo;

    fn connect_info(&self) -> PeerInfo {
        PeerInfo {
            address: self.stream.get_ref().0.peer_addr().ok(),
        }
    }
}

impl AsyncRead for TlsConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for TlsConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Stream of accepted TLS connections, for `tonic::transport::Server::serve_with_incoming`.
pub struct IncomingConnections(mpsc::Receiver<AdmittedConnection<TlsStream<TcpStream>>>);

impl fmt::Debug for IncomingConnections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Incoming")
    }
}

impl Stream for IncomingConnections {
    type Item = io::Result<TlsConnection>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx).map(|admitted| {
            let admitted = admitted?;
            Some(Ok(TlsConnection {
                stream: admitted.connection,
                slot: Some(admitted.slot),
            }))
        })
    }
}

/// Accepts connections until the drain starts. Calls `config` for each, so that a renewed serving certificate needs no
/// restart, and `closed` for each connection that is closed before its caller is authenticated.
pub fn incoming_connections(
    listener: TcpListener,
    drain: DrainWatcher,
    config: impl Fn() -> Arc<ServerConfig> + Send + 'static,
    closed: impl Fn(HandshakeCloseReason) + Clone + Send + 'static,
) -> IncomingConnections {
    IncomingConnections(admit_connections(
        "grpc accept",
        listener,
        drain,
        config,
        closed,
    ))
}

/// Accepts connections for an HTTP/1.1 server, as [`incoming_connections`] does.
pub fn http1_listener(
    listener: TcpListener,
    drain: DrainWatcher,
    config: impl Fn() -> Arc<ServerConfig> + Send + 'static,
    closed: impl Fn(HandshakeCloseReason) + Clone + Send + 'static,
) -> AdmittedListener<TlsStream<TcpStream>> {
    admit_connections("https accept", listener, drain, config, closed).into()
}

fn admit_connections(
    name: &'static str,
    listener: TcpListener,
    drain: DrainWatcher,
    config: impl Fn() -> Arc<ServerConfig> + Send + 'static,
    closed: impl Fn(HandshakeCloseReason) + Clone + Send + 'static,
) -> mpsc::Receiver<AdmittedConnection<TlsStream<TcpStream>>> {
    let admission = move |stream: TcpStream| {
        // TCP_NODELAY: small responses must not wait for more data.
        stream.set_nodelay(true).ok();
        TlsAcceptor::from(config()).accept(stream)
    };
    handshakes::accept_with_handshake(name, listener, HANDSHAKE_LIMITS, drain, admission, closed)
}
