//! TLS of HBONE connections: ALPN `h2` is required, no server name is sent, and both sides present certificates.

use std::{sync::Arc, time::Duration};

use ambit_tls::TrustWithdrawalReason;
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

pub use crate::buffered_reads::BufferedReads;

/// Established TLS connection, as client or server.
pub type TlsStream<IO = TcpStream> = tokio_rustls::TlsStream<BufferedReads<IO>>;

/// Maximum plaintext that is encrypted before it is written to the socket, in bytes. A write thus has several TLS
/// records.
const WRITE_BUFFER_BYTES: usize = 256 << 10;

/// Error of a TLS handshake.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The handshake did not complete within this time.
    #[error("the TLS handshake took longer than {0:?}")]
    Timeout(Duration),
    /// Either side rejected the handshake, or the peer does not speak TLS.
    #[error("the TLS handshake failed")]
    Tls(#[source] std::io::Error),
    /// The peer does not support HTTP/2 (ALPN `h2`).
    #[error("the peer did not agree on h2 by ALPN")]
    NoH2Alpn,
}

impl HandshakeError {
    /// Whether the peer disconnected without rejecting the handshake by an alert.
    pub(crate) fn is_connection_closed(&self) -> bool {
        matches!(self, Self::Tls(error) if crate::relay::is_disconnect_error(error))
    }

    /// Returns the low-cardinality reason for metrics.
    pub fn reason(&self) -> ambit_model::FailureReason {
        use ambit_model::FailureReason::{CertRevoked, TlsFailure};
        match self {
            Self::Tls(error) if ambit_tls::failure_reason(error) == CertRevoked => CertRevoked,
            _ => TlsFailure,
        }
    }
}

/// Performs the TLS handshake as a client. The configuration decides which peers are accepted; no server name is sent
/// (names that are IP addresses never are).
///
/// # Errors
///
/// When the handshake fails or takes too long.
pub async fn connect<IO: AsyncRead + AsyncWrite + Unpin>(
    socket: IO,
    config: Arc<ClientConfig>,
    limit: Duration,
) -> Result<TlsStream<IO>, HandshakeError> {
    let nobody = ServerName::IpAddress(IpAddr::V4([0, 0, 0, 0].into()));
    match timeout(
        limit,
        TlsConnector::from(config).connect(nobody, BufferedReads::new(socket)),
    )
    .await
    {
        Ok(Ok(stream)) => expect_h2(stream.into()),
        Ok(Err(error)) => Err(HandshakeError::Tls(error)),
        Err(_elapsed) => Err(HandshakeError::Timeout(limit)),
    }
}

/// Performs the TLS handshake as a server.
///
/// # Errors
///
/// When the handshake fails or takes too long.
pub async fn accept<IO: AsyncRead + AsyncWrite + Unpin>(
    socket: IO,
    config: Arc<ServerConfig>,
    limit: Duration,
) -> Result<TlsStream<IO>, HandshakeError> {
    match timeout(
        limit,
        TlsAcceptor::from(config).accept(BufferedReads::new(socket)),
    )
    .await
    {
        Ok(Ok(stream)) => expect_h2(stream.into()),
        Ok(Err(error)) => Err(HandshakeError::Tls(error)),
        Err(_elapsed) => Err(HandshakeError::Timeout(limit)),
    }
}

/// Returns the peer's certificate chain, leaf first.
pub fn peer_certificates<IO>(stream: &TlsStream<IO>) -> &[CertificateDer<'static>] {
    stream.get_ref().1.peer_certificates().unwrap_or_default()
}

/// Makes a connection fail once `withdrawn` completes, since the peer is then no longer accepted.
pub fn fail_reads_on_withdrawal<IO>(
    stream: &mut TlsStream<IO>,
    withdrawn: impl Future<Output = TrustWithdrawalReason> + Send + 'static,
) {
    let io = match stream {
        tokio_rustls::TlsStream::Client(stream) => stream.get_mut().0,
        tokio_rustls::TlsStream::Server(stream) => stream.get_mut().0,
    };
    io.fail_reads_on_withdrawal(withdrawn);
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
        Err(HandshakeError::NoH2Alpn)
    }
}
