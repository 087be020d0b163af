//! The TLS listeners of a control plane, of gRPC and of HTTP/1.1, with limits on unauthenticated connections.
#![forbid(unsafe_code)]

use std::{
    fmt, io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use ambit_rt::{DrainWatcher, Rates, Slot, SlotLimits, Slots};
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

/// Limits of unauthenticated connections: those in their handshake, and those without an authenticated
/// call so far.
const UNKNOWN: SlotLimits = SlotLimits {
    total: 1024,
    each: 32,
    few: 4,
};
/// New connections of one address: in a second, and in a burst after a pause. A handshake costs the
/// server more than the client.
const NEW: (u32, u32) = (20, 100);
/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A server configuration without client certificates: callers authenticate with tokens.
pub fn server_config(
    settings: &TlsSettings,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(settings.provider())
        .with_protocol_versions(settings.versions())?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    Ok(Arc::new(config))
}

/// The peer, in a request's extensions.
#[derive(Clone, Copy, Debug)]
pub struct PeerInfo {
    /// The address that it connects from.
    pub address: Option<SocketAddr>,
}

/// Why a connection was closed before its caller was authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// Its address opens too many a second.
    Rate,
    /// A later connection took its slot.
    Displaced,
    /// Its handshake failed or took too long.
    Handshake,
}

impl Closed {
    /// The reason as a label of metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Displaced => "displaced",
            Self::Handshake => "handshake",
        }
    }
}

/// A connection whose handshake is done.
#[derive(Debug)]
pub struct TlsConnection {
    stream: TlsStream<TcpStream>,
    /// Its slot among the unauthenticated connections.
    slot: Option<Slot>,
}

impl TlsConnection {
    /// Its slot among the unauthenticated connections. The server gives it up when it has authenticated
    /// the caller, and ends the connection when the slot is evicted.
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

/// The connections for `tonic::transport::Server::serve_with_incoming`.
pub struct Incoming(mpsc::Receiver<TlsConnection>);

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Incoming")
    }
}

impl Stream for Incoming {
    type Item = io::Result<TlsConnection>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx).map(|connection| connection.map(Ok))
    }
}

/// Accepts connections until the drain starts. `config` is called for each, so that a renewed serving
/// certificate needs no restart; `closed` is called for each that is closed unauthenticated.
pub fn incoming(
    listener: TcpListener,
    mut drain: DrainWatcher,
    config: impl Fn() -> Arc<ServerConfig> + Send + 'static,
    closed: impl Fn(Closed) + Clone + Send + 'static,
) -> Incoming {
    let (sender, receiver) = mpsc::channel(16);
    ambit_rt::spawn("grpc accept", async move {
        let slots = Slots::new(UNKNOWN);
        let rates = Rates::new(NEW.0, NEW.1);
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = drain.started() => return,
                () = sender.closed() => return,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!(%error, "accept failed");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                }
            };
            if !rates.take(peer.ip().to_canonical(), Instant::now()) {
                tracing::debug!(%peer, "connection closed: its address opens too many");
                closed(Closed::Rate);
                continue;
            }
            let slot = tokio::select! {
                slot = slots.enter(peer.ip()) => slot,
                _ = drain.started() => return,
            };
            let handshake = Handshake {
                stream,
                peer,
                slot,
                config: config(),
            };
            let (sender, closed) = (sender.clone(), closed.clone());
            ambit_rt::spawn("grpc handshake", async move {
                match handshake.run().await {
                    // Fails only when the server has stopped.
                    Ok(connection) => drop(sender.send(connection).await),
                    Err(why) => closed(why),
                }
            });
        }
    });
    Incoming(receiver)
}

/// A handshake about to begin.
struct Handshake {
    stream: TcpStream,
    peer: SocketAddr,
    slot: Slot,
    config: Arc<ServerConfig>,
}

impl Handshake {
    async fn run(mut self) -> Result<TlsConnection, Closed> {
        let peer = self.peer;
        // Small answers must not wait for more data, as they would without this option.
        self.stream.set_nodelay(true).ok();
        let accept = TlsAcceptor::from(self.config).accept(self.stream);
        tokio::select! {
            done = tokio::time::timeout(HANDSHAKE_TIMEOUT, accept) => match done {
                Ok(Ok(stream)) => Ok(TlsConnection { stream, slot: Some(self.slot) }),
                Ok(Err(error)) => {
                    tracing::debug!(%peer, %error, "TLS handshake failed");
                    Err(Closed::Handshake)
                }
                Err(_) => {
                    tracing::debug!(%peer, "TLS handshake took too long");
                    Err(Closed::Handshake)
                }
            },
            () = self.slot.evicted() => {
                tracing::debug!(%peer, "connection closed: its address has opened too many");
                Err(Closed::Displaced)
            }
        }
    }
}
