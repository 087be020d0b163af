//! TLS to servers outside of the mesh, or to applications that speak TLS themselves: their certificates have host
//! names, addresses or URIs as SANs, and chain to CA certificates that the caller chooses.

use std::{io, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, OtherError, RootCertStore,
    SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor, verify_server_name,
    },
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
    server::ParsedCertificate,
    version::{TLS12, TLS13},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use webpki::EndEntityCert;

use crate::{ChainError, ClientStream, HandshakeError, TlsSettings, pem};

/// Error of building a TLS client configuration.
#[derive(Debug, thiserror::Error)]
pub enum OriginatedTlsError {
    /// The text contains no usable certificates.
    #[error("the certificates cannot be read")]
    Certificates(#[from] ChainError),
    /// No certificate can be used as a root.
    #[error("there is no authority that could have signed a certificate")]
    NoTrustedRoot,
    /// The client certificate's private key is invalid.
    #[error("the private key cannot be read")]
    InvalidKey(#[source] rustls_pki_types::pem::Error),
    /// The expected SAN is invalid, so that no server certificate can have it.
    #[error("{0:?} is no name that a certificate may have")]
    InvalidSan(String),
    /// The TLS configuration is inconsistent, for instance the key does not match the certificate.
    #[error("no TLS can be made of it")]
    Tls(#[from] rustls::Error),
}

/// Trust store: CA certificates by which servers are verified.
#[derive(Clone, Debug)]
pub struct TrustedAuthorities(Arc<RootCertStore>);

impl TrustedAuthorities {
    /// Parses CA certificates in PEM, all of which must be usable as roots.
    ///
    /// # Errors
    ///
    /// When one is not usable, or there is none.
    pub fn from_pem(text: &str) -> Result<Self, OriginatedTlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in pem::parse_certificates(0, text)? {
            roots.add(certificate)?;
        }
        Ok(Self(Arc::new(roots)))
    }

    /// Builds the trust store of the system's CA certificates; unusable ones are skipped.
    ///
    /// # Errors
    ///
    /// When no certificate is usable.
    pub fn from_system_roots(
        certificates: Vec<CertificateDer<'static>>,
    ) -> Result<Self, OriginatedTlsError> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates);
        if roots.is_empty() {
            return Err(OriginatedTlsError::NoTrustedRoot);
        }
        Ok(Self(Arc::new(roots)))
    }
}

/// Client certificate chain with its private key, for TLS origination.
#[derive(Clone, Copy, Debug)]
pub struct ClientKeyPair<'a> {
    /// Certificate chain in PEM, leaf first.
    pub certificates: &'a str,
    /// Private key in PEM.
    pub key: &'a [u8],
}

/// Expected SAN of a server's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SubjectAltName {
    Host(ServerName<'static>),
    Uri(String),
}

/// TLS client configuration for servers of one destination. Sessions are resumed only among them.
#[derive(Clone, Debug)]
pub struct OriginatedTls(Arc<ClientConfig>);

impl OriginatedTls {
    /// Creates a configuration that accepts servers whose certificate has one of `names` as SAN; without `names`, the
    /// server name that is sent.
    ///
    /// # Errors
    ///
    /// When the configuration is invalid.
    pub fn new(
        settings: &TlsSettings,
        authorities: TrustedAuthorities,
        names: &[impl AsRef<str>],
        shown: Option<ClientKeyPair<'_>>,
    ) -> Result<Self, OriginatedTlsError> {
        Self::build(settings, Some(authorities), names, shown)
    }

    /// Creates a configuration that accepts any certificate, and verifies only that the server has its private key.
    ///
    /// # Errors
    ///
    /// When the configuration is invalid.
    pub fn without_verification(
        settings: &TlsSettings,
        shown: Option<ClientKeyPair<'_>>,
    ) -> Result<Self, OriginatedTlsError> {
        Self::build(settings, None, &[""; 0], shown)
    }

    fn build(
        settings: &TlsSettings,
        authorities: Option<TrustedAuthorities>,
        names: &[impl AsRef<str>],
        shown: Option<ClientKeyPair<'_>>,
    ) -> Result<Self, OriginatedTlsError> {
        let provider = Arc::new(CryptoProvider {
            // External servers need not support the mesh's own few cipher suites.
            cipher_suites: aws_lc_rs::default_provider().cipher_suites,
            ..CryptoProvider::clone(&settings.provider)
        });
        let names = names.iter().map(|name| parse_name(name.as_ref()));
        let verifier = OriginatedTlsVerifier {
            provider: provider.clone(),
            authorities,
            expected_names: names.collect::<Result<_, _>>()?,
        };
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder
            .with_protocol_versions(&[&TLS13, &TLS12])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let config = match shown {
            None => builder.with_no_client_auth(),
            Some(ClientKeyPair { certificates, key }) => {
                let chain = pem::parse_certificates(0, certificates)?;
                let key =
                    PrivateKeyDer::from_pem_slice(key).map_err(OriginatedTlsError::InvalidKey)?;
                builder.with_client_auth_cert(chain, key)?
            }
        };
        Ok(Self(Arc::new(config)))
    }

    /// Performs the TLS handshake with a server name (SNI), and at most one ALPN protocol. The caller sets the
    /// deadline.
    ///
    /// # Errors
    ///
    /// When the server's certificate is not accepted, or its protocol is not the expected one.
    pub async fn connect<S>(
        &self,
        stream: S,
        name: &str,
        protocol: Option<&[u8]>,
    ) -> Result<ClientStream<S>, OriginatedTlsConnectError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut config = self.0.clone();
        if let Some(protocol) = protocol {
            Arc::make_mut(&mut config).alpn_protocols = vec![protocol.to_vec()];
        }
        let server = ServerName::try_from(name.to_owned());
        let server =
            server.map_err(|_| OriginatedTlsConnectError::InvalidServerName(name.to_owned()))?;
        let failed = |error: io::Error| OriginatedTlsConnectError::Handshake {
            name: name.to_owned(),
            source: error.into(),
        };
        let connector = TlsConnector::from(config);
        let stream = connector.connect(server, stream).await.map_err(failed)?;
        let agreed = stream.get_ref().1.alpn_protocol();
        // Servers without ALPN use HTTP/1.
        if protocol == Some(b"h2") && agreed != protocol {
            return Err(OriginatedTlsConnectError::NotHttp2(name.to_owned()));
        }
        Ok(stream)
    }
}

/// Error of a TLS handshake with a server outside of the mesh.
#[derive(Debug, thiserror::Error)]
pub enum OriginatedTlsConnectError {
    /// The server name for SNI is invalid.
    #[error("{0:?} is no name of a server")]
    InvalidServerName(String),
    /// The handshake failed, because of the server or the network.
    #[error("TLS with {name} failed")]
    Handshake {
        /// Server name that was sent.
        name: String,
        /// Error of the TLS handshake.
        #[source]
        source: HandshakeError,
    },
    /// The server with this name did not agree on HTTP/2 by ALPN.
    #[error("{0} does not speak HTTP/2 over TLS (ALPN)")]
    NotHttp2(String),
}

fn parse_name(text: &str) -> Result<SubjectAltName, OriginatedTlsError> {
    if text.contains("://") {
        return Ok(SubjectAltName::Uri(text.to_owned()));
    }
    let name = ServerName::try_from(text.to_owned());
    name.map(SubjectAltName::Host)
        .map_err(|_| OriginatedTlsError::InvalidSan(text.to_owned()))
}

/// Error of a server certificate whose SANs include no expected one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the certificate is for none of {0}")]
struct SubjectAltNameMismatch(String);

#[derive(Debug)]
struct OriginatedTlsVerifier {
    provider: Arc<CryptoProvider>,
    /// Trust store; `None` accepts every certificate.
    authorities: Option<TrustedAuthorities>,
    expected_names: Vec<SubjectAltName>,
}

impl ServerCertVerifier for OriginatedTlsVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(TrustedAuthorities(roots)) = &self.authorities else {
            return Ok(ServerCertVerified::assertion());
        };
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(
            &certificate,
            roots,
            intermediates,
            now,
            algorithms,
        )?;
        if self.expected_names.is_empty() {
            verify_server_name(&certificate, server_name)?;
            return Ok(ServerCertVerified::assertion());
        }
        let of_uris = EndEntityCert::try_from(end_entity)
            .map_err(|_| rustls::Error::from(CertificateError::BadEncoding))?;
        let is_for = |name: &SubjectAltName| match name {
            SubjectAltName::Host(name) => verify_server_name(&certificate, name).is_ok(),
            SubjectAltName::Uri(uri) => of_uris.valid_uri_names().any(|name| name == uri),
        };
        if self.expected_names.iter().any(is_for) {
            return Ok(ServerCertVerified::assertion());
        }
        let text = |name: &SubjectAltName| match name {
            SubjectAltName::Host(name) => name.to_str().into_owned(),
            SubjectAltName::Uri(uri) => uri.clone(),
        };
        let expected: Vec<_> = self.expected_names.iter().take(8).map(text).collect();
        let error = SubjectAltNameMismatch(expected.join(", "));
        Err(CertificateError::Other(OtherError(Arc::new(error))).into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}
