//! TLS handshakes over any byte stream, and the reasons of their failures.

use std::{error::Error, io, net::Ipv4Addr, sync::Arc};

use ambit_model::{FailureReason, Identity};
use rustls::{CertificateError, ClientConfig, ServerConfig};
use rustls_pki_types::{CertificateDer, IpAddr, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::{settings::ALPN_H2, verify::leaf_identity};

/// Established TLS connection on the client side.
pub type ClientStream<S> = tokio_rustls::client::TlsStream<S>;
/// Established TLS connection on the server side.
pub type ServerStream<S> = tokio_rustls::server::TlsStream<S>;

/// Error of a TLS handshake.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The TLS handshake failed, for instance since the peer's certificate was rejected.
    #[error("TLS handshake failed")]
    Tls(#[source] rustls::Error),
    /// The underlying connection failed.
    #[error("connection lost during the TLS handshake")]
    Io(#[source] io::Error),
    /// The peer did not negotiate HTTP/2 by ALPN.
    #[error("the peer did not agree on ALPN h2")]
    NoCommonAlpn,
}

impl HandshakeError {
    /// Returns the response flag for metrics and the access log.
    pub fn reason(&self) -> FailureReason {
        match self {
            Self::Tls(error) => tls_failure_reason(error),
            Self::NoCommonAlpn => FailureReason::TlsFailure,
            Self::Io(_) => FailureReason::Connect,
        }
    }
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        match error.downcast::<rustls::Error>() {
            Ok(tls) => Self::Tls(tls),
            Err(error) => Self::Io(error),
        }
    }
}

/// Performs the handshake as a client with a configuration of [`crate::WorkloadCert::client_config`].
///
/// The caller sets the deadline.
pub async fn connect<S>(
    config: Arc<ClientConfig>,
    stream: S,
) -> Result<ClientStream<S>, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // Never sent (no SNI) and never checked (the verifier compares SPIFFE ids).
    let nobody = ServerName::IpAddress(IpAddr::from(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED)));
    let stream = TlsConnector::from(config).connect(nobody, stream).await?;
    match stream.get_ref().1.alpn_protocol() {
        Some(ALPN_H2) => Ok(stream),
        _ => Err(HandshakeError::NoCommonAlpn),
    }
}

/// Performs the handshake as a server with a configuration of [`crate::WorkloadCert::server_config`]; also returns
/// the client's identity.
///
/// The caller sets the deadline.
pub async fn accept<S>(
    config: Arc<ServerConfig>,
    stream: S,
) -> Result<(ServerStream<S>, Option<Identity>), HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let stream = TlsAcceptor::from(config).accept(stream).await?;
    let connection = stream.get_ref().1;
    if connection.alpn_protocol() != Some(ALPN_H2) {
        return Err(HandshakeError::NoCommonAlpn);
    }
    let identity = connection.peer_certificates().and_then(peer_identity);
    Ok((stream, identity))
}

/// Returns the identity in a peer's verified chain (leaf first): the first SPIFFE ID of the form `spiffe://<trust
/// domain>/ns/<namespace>/sa/<service account>`.
pub fn peer_identity(chain: &[CertificateDer<'_>]) -> Option<Identity> {
    chain.first().and_then(leaf_identity)
}

/// Returns the response flag of an error that has a TLS error anywhere in its chain of causes.
pub fn failure_reason(error: &(dyn Error + 'static)) -> FailureReason {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(tls) = error.downcast_ref::<rustls::Error>() {
            return tls_failure_reason(tls);
        }
        // An io::Error does not return its inner error as `source`.
        next = match error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref)
        {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    FailureReason::Connect
}

fn tls_failure_reason(error: &rustls::Error) -> FailureReason {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::Revoked) => FailureReason::CertRevoked,
        _ => FailureReason::TlsFailure,
    }
}
