//! TLS on a tunnel's connection: exactly `h2` by ALPN, no server name, certificates on both sides.

use std::{sync::Arc, time::Duration};

use ambit_tls::Withdrawal;
use rustls::{
    ClientConfig, ServerConfig,
    pki_types::{CertificateDer, IpAddr, ServerName},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

pub use crate::coarse::Coarse;

/// An established TLS connection.
pub type TlsStream<IO = TcpStream> = tokio_rustls::TlsStream<Coarse<IO>>;

/// Plaintext encrypted before it is written: several records a system call.
const WRITE_BUFFER_BYTES: usize = 256 << 10;

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// Timeout of the handshake.
    #[error("the TLS handshake took longer than {0:?}")]
    Timeout(Duration),
    /// Refused by either side, or not TLS at all.
    #[error("the TLS handshake failed")]
    Tls(#[source] std::io::Error),
    /// The peer does not support HTTP/2.
    #[error("the peer did not agree on h2 by ALPN")]
    Alpn,
}

impl HandshakeError {
    /// Whether the peer disconnected rather than refused the handshake.
    pub(crate) fn is_cut_off(&self) -> bool {
        matches!(self, Self::Tls(error) if crate::relay::is_gone(error))
    }

    /// Returns the low-cardinality reason for metrics.
    pub fn reason(&self) -> ambit_model::Reason {
        use ambit_model::Reason::{CertRevoked, TlsFailure};
        match self {
            Self::Tls(error) if ambit_tls::reason_of(error) == CertRevoked => CertRevoked,
            _ => TlsFailure,
        }
    }
}

/// Does the handshake as a client. The configuration decides which peers are acceptable; no server name
/// is sent (names of the IP kind never are).
///
/// # Errors
/// When the handshake fails or takes too long.
pub async fn connect<IO: AsyncRead + AsyncWrite + Unpin>(
    socket: IO,
    config: Arc<ClientConfig>,
    limit: Duration,
) -> Result<TlsStream<IO>, HandshakeError> {
    let nobody = ServerName::IpAddress(IpAddr::V4([0, 0, 0, 0].into()));
    match timeout(
        limit,
        TlsConnector::from(config).connect(nobody, Coarse::new(socket)),
    )
    .await
    {
        Ok(Ok(stream)) => expect_h2(stream.into()),
        Ok(Err(error)) => Err(HandshakeError::Tls(error)),
        Err(_elapsed) => Err(HandshakeError::Timeout(limit)),
    }
}

/// Does the handshake as a server.
///
/// # Errors
/// When the handshake fails or takes too long.
pub async fn accept<IO: AsyncRead + AsyncWrite + Unpin>(
    socket: IO,
    config: Arc<ServerConfig>,
    limit: Duration,
) -> Result<TlsStream<IO>, HandshakeError> {
    match timeout(limit, TlsAcceptor::from(config).accept(Coarse::new(socket))).await {
        Ok(Ok(stream)) => expect_h2(stream.into()),
        Ok(Err(error)) => Err(HandshakeError::Tls(error)),
        Err(_elapsed) => Err(HandshakeError::Timeout(limit)),
    }
}

/// The peer's certificates, its own first.
pub fn peer_certificates<IO>(stream: &TlsStream<IO>) -> &[CertificateDer<'static>] {
    stream.get_ref().1.peer_certificates().unwrap_or_default()
}

/// Wraps a connection that closes when `withdrawn` completes, since the peer is no longer accepted.
pub fn end_when_withdrawn<IO>(
    stream: &mut TlsStream<IO>,
    withdrawn: impl Future<Output = Withdrawal> + Send + 'static,
) {
    let io = match stream {
        tokio_rustls::TlsStream::Client(stream) => stream.get_mut().0,
        tokio_rustls::TlsStream::Server(stream) => stream.get_mut().0,
    };
    io.end_when(withdrawn);
}

fn expect_h2<IO>(mut stream: TlsStream<IO>) -> Result<TlsStream<IO>, HandshakeError> {
    match &mut stream {
        tokio_rustls::TlsStream::Client(stream) => {
            stream
                .get_mut()
                .1
                .set_buffer_limit(Some(WRITE_BUFFER_BYTES));
        }
        tokio_rustls::TlsStream::Server(stream) => {
            stream
                .get_mut()
                .1
                .set_buffer_limit(Some(WRITE_BUFFER_BYTES));
        }
    }
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        Ok(stream)
    } else {
        Err(HandshakeError::Alpn)
    }
}
