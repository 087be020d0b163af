//! The listener of a control plane: TLS connections as tonic takes them.

use std::{
    fmt, io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use ambit_rt::DrainWatcher;
use rustls::ServerConfig;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_stream::Stream;
use tonic::transport::server::Connected;

use crate::{TlsSettings, settings::ALPN_H2};

/// Handshakes under way at most; further connections wait in the kernel's queue.
const MAX_HANDSHAKES: usize = 256;
/// Connections open at most, from all callers: one for each proxy is usual.
const MAX_CONNECTIONS: usize = 16_384;
/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A server configuration without client certificates: callers authenticate with tokens.
pub fn server_config(
    settings: &TlsSettings,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(settings.provider.clone())
        .with_protocol_versions(settings.versions())?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    Ok(Arc::new(config))
}

/// Who is at the other end, in a request's extensions.
#[derive(Clone, Copy, Debug)]
pub struct PeerInfo {
    /// The address that connected.
    pub address: Option<SocketAddr>,
}

/// A connection whose handshake is done.
#[derive(Debug)]
pub struct TlsConnection {
    stream: TlsStream<TcpStream>,
    /// Its place among the connections; none is left when the semaphore is closed, which it never is.
    _open: Option<OwnedSemaphorePermit>,
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

/// Connections for `tonic::transport::Server::serve_with_incoming`.
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

/// Accepts connections until the drain starts. `config` is asked for each, so that a renewed
/// serving certificate needs no restart.
pub fn incoming(
    listener: TcpListener,
    mut drain: DrainWatcher,
    config: impl Fn() -> Arc<ServerConfig> + Send + 'static,
) -> Incoming {
    let (sender, receiver) = mpsc::channel(16);
    ambit_rt::spawn("grpc accept", async move {
        let slots = Arc::new(Semaphore::new(MAX_HANDSHAKES));
        let open = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let next = async {
                let open = open.clone().acquire_owned().await;
                let slot = slots.clone().acquire_owned().await;
                (open, slot, listener.accept().await)
            };
            let (open, slot, accepted) = tokio::select! {
                next = next => next,
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
            let acceptor = TlsAcceptor::from(config());
            let sender = sender.clone();
            ambit_rt::spawn("grpc handshake", async move {
                // Small answers must not wait for more data; without the option they only do.
                stream.set_nodelay(true).ok();
                match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                    Ok(Ok(stream)) => {
                        // Fails only when the server has stopped.
                        sender
                            .send(TlsConnection {
                                stream,
                                _open: open.ok(),
                            })
                            .await
                            .ok();
                    }
                    Ok(Err(error)) => tracing::debug!(%peer, %error, "TLS handshake failed"),
                    Err(_) => tracing::debug!(%peer, "TLS handshake took too long"),
                }
                drop(slot);
            });
        }
    });
    Incoming(receiver)
}
