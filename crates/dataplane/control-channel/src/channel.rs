//! gRPC channels to the control plane. Each connection verifies the server by freshly read roots; clients present no
//! certificate.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use ambit_tls::{ALPN_H2, TlsSettings};
use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
};
use rustls_pki_types::{CertificateDer, InvalidDnsNameError, ServerName, UnixTime};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};

use crate::{RootCa, RootCaError};

/// Timeout of a TCP connection attempt. Bounds the delay until another server is tried after one is terminated.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Address of a control plane service, and the settings that verify its server.
#[derive(Clone, Debug)]
pub struct ChannelConfig {
    /// URL of the server: `https://host:port`, or without scheme; the default port is 443. `http://` is rejected.
    pub address: String,
    /// Root certificates that the server's certificate must chain to.
    pub roots: RootCa,
    /// SAN that the server's certificate may have in place of the host name (`ALT_XDS_HOSTNAME`, `ALT_CA_HOSTNAME`).
    pub alternative_name: Option<String>,
    /// TLS versions and cipher suites to offer.
    pub tls: TlsSettings,
}

/// Error of building a channel to the control plane.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The configured address is not a URL.
    #[error("{address:?} is not an address of the form https://host:port")]
    InvalidAddress {
        /// Address as configured.
        address: String,
        /// Cause of the error.
        #[source]
        source: http::uri::InvalidUri,
    },
    /// The configured address has no host, or its scheme is not https.
    #[error("{address:?} must name a host, and https if a scheme")]
    NotHttps {
        /// Address as configured.
        address: String,
    },
    /// The configured host name or alternative name is not a valid DNS name or IP address.
    #[error("{name:?} cannot be a server's name")]
    InvalidHostName {
        /// Host or alternative name, as configured.
        name: String,
        /// Cause of the error.
        #[source]
        source: InvalidDnsNameError,
    },
}

/// Creates a channel that connects when first used, and again whenever the connection is lost.
///
/// Must be called within a runtime. Keeps the connection alive with TCP keepalive and HTTP/2 PINGs.
pub fn create_channel(config: &ChannelConfig) -> Result<Channel, ChannelError> {
    let target = ChannelTarget::new(config)?;
    // The connector does TLS itself; tonic must not add its own.
    let endpoint = Endpoint::from(target.plaintext_uri()?)
        .origin(target.origin_uri()?)
        .http2_keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(10))
        .keep_alive_while_idle(true);
    Ok(endpoint.connect_with_connector_lazy(Connector(Arc::new(target))))
}

#[derive(Debug)]
struct ChannelTarget {
    host: String,
    port: u16,
    server_name: ServerName<'static>,
    alternative_name: Option<ServerName<'static>>,
    roots: RootCa,
    tls: TlsSettings,
}

impl ChannelTarget {
    fn new(config: &ChannelConfig) -> Result<Self, ChannelError> {
        let address = &config.address;
        let not_https = || ChannelError::NotHttps {
            address: address.clone(),
        };
        let uri: Uri = match address.split_once("://") {
            Some(("https", _)) => address.parse(),
            Some(_) => return Err(not_https()),
            None => format!("https://{address}").parse(),
        }
        .map_err(|source| ChannelError::InvalidAddress {
            address: address.clone(),
            source,
        })?;
        let host = uri
            .host()
            .filter(|host| !host.is_empty())
            .ok_or_else(not_https)?;
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let name = |name: &str| {
            ServerName::try_from(name.to_owned()).map_err(|source| ChannelError::InvalidHostName {
                name: name.to_owned(),
                source,
            })
        };
        Ok(Self {
            server_name: name(&host)?,
            alternative_name: config.alternative_name.as_deref().map(name).transpose()?,
            port: uri.port_u16().unwrap_or(443),
            host,
            roots: config.roots.clone(),
            tls: config.tls.clone(),
        })
    }

    fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    fn plaintext_uri(&self) -> Result<Uri, ChannelError> {
        self.uri_with_scheme("http")
    }

    fn origin_uri(&self) -> Result<Uri, ChannelError> {
        self.uri_with_scheme("https")
    }

    fn uri_with_scheme(&self, scheme: &str) -> Result<Uri, ChannelError> {
        let address = format!("{scheme}://{}", self.authority());
        address
            .parse()
            .map_err(|source| ChannelError::InvalidAddress { address, source })
    }

    fn client_config(&self) -> Result<ClientConfig, ConnectError> {
        let roots = Arc::new(self.roots.load()?);
        let inner =
            WebPkiServerVerifier::builder_with_provider(roots, self.tls.provider()).build()?;
        let verifier = AlternativeNameVerifier {
            inner,
            alternative_name: self.alternative_name.clone(),
        };
        let mut config = ClientConfig::builder_with_provider(self.tls.provider())
            .with_protocol_versions(self.tls.protocol_versions())?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        config.alpn_protocols = vec![ALPN_H2.to_vec()];
        Ok(config)
    }

    async fn connect_tls(&self) -> Result<Stream, ConnectError> {
        let tls = self.client_config()?;
        let tcp = tokio::time::timeout(CONNECT_TIMEOUT, self.connect_tcp())
            .await
            .map_err(|_| ConnectError::TimedOut {
                target: self.authority(),
                what: "connecting",
            })??;
        let connector = tokio_rustls::TlsConnector::from(Arc::new(tls));
        let handshake = connector.connect(self.server_name.clone(), tcp);
        let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake)
            .await
            .map_err(|_| ConnectError::TimedOut {
                target: self.authority(),
                what: "the TLS handshake",
            })?
            .map_err(|source| ConnectError::Handshake {
                target: self.authority(),
                source,
            })?;
        Ok(TokioIo::new(stream))
    }

    async fn connect_tcp(&self) -> Result<TcpStream, ConnectError> {
        let failed = |source| ConnectError::Tcp {
            target: self.authority(),
            source,
        };
        let addresses = ambit_rt::lookup_host(&self.host).await.map_err(failed)?;
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in addresses {
            match TcpStream::connect((address, self.port)).await {
                Ok(stream) => {
                    enable_keepalive(&stream);
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(failed(last))
    }
}

/// Sets TCP keepalive options; errors are ignored, since the connection works without them.
fn enable_keepalive(stream: &TcpStream) {
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(300))
        .with_interval(Duration::from_secs(75))
        .with_retries(9);
    if let Err(error) = stream
        .set_nodelay(true)
        .and_then(|()| SockRef::from(stream).set_tcp_keepalive(&keepalive))
    {
        tracing::debug!(%error, "socket options of the control plane connection");
    }
}

type Stream = TokioIo<tokio_rustls::client::TlsStream<TcpStream>>;

/// Error of connecting to the control plane.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("cannot connect to {target}")]
    Tcp {
        target: String,
        #[source]
        source: io::Error,
    },
    #[error("TLS handshake with {target} failed")]
    Handshake {
        target: String,
        #[source]
        source: io::Error,
    },
    #[error("{what} to {target} took too long")]
    TimedOut { target: String, what: &'static str },
    #[error(transparent)]
    Roots(#[from] RootCaError),
    #[error("the TLS settings cannot be used")]
    Verifier(#[from] rustls::client::VerifierBuilderError),
    #[error("the TLS settings cannot be used")]
    Config(#[from] rustls::Error),
}

#[derive(Clone, Debug)]
struct Connector(Arc<ChannelTarget>);

impl tower_service::Service<Uri> for Connector {
    type Response = Stream;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let target = self.0.clone();
        Box::pin(async move { target.connect_tls().await })
    }
}

/// Certificate verifier that accepts an alternative name if the host name does not match.
#[derive(Debug)]
struct AlternativeNameVerifier {
    inner: Arc<WebPkiServerVerifier>,
    alternative_name: Option<ServerName<'static>>,
}

impl ServerCertVerifier for AlternativeNameVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verify = |name: &ServerName<'_>| {
            self.inner
                .verify_server_cert(end_entity, intermediates, name, ocsp_response, now)
        };
        let first = verify(server_name);
        match (&first, &self.alternative_name) {
            (Err(_), Some(alternative)) => verify(alternative).or(first),
            _ => first,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_target(address: &str) -> Result<ChannelTarget, ChannelError> {
        ChannelTarget::new(&ChannelConfig {
            address: address.to_owned(),
            roots: RootCa::System,
            alternative_name: None,
            tls: TlsSettings::default(),
        })
    }

    #[test]
    fn addresses_default_to_https_and_port_443() {
        let authority = |address| parse_target(address).unwrap().authority();
        assert_eq!(
            authority("https://istiod.istio-system.svc:15012"),
            "istiod.istio-system.svc:15012"
        );
        assert_eq!(authority("localhost:15012"), "localhost:15012");
        assert_eq!(authority("https://[::1]:15012"), "[::1]:15012");
        assert_eq!(authority("https://istiod"), "istiod:443");
    }

    #[test]
    fn plaintext_and_invalid_addresses_are_refused() {
        for address in ["http://istiod:15010", "", "https://", "ftp://x", "a b"] {
            assert!(parse_target(address).is_err(), "{address:?}");
        }
    }
}
