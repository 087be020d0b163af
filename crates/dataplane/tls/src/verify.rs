//! Verifies a peer's certificate: its chain to the mesh's roots, and its SPIFFE id.
//!
//! Host names play no part in the mesh. Nothing is cached between handshakes.

use std::{fmt, sync::Arc};

use ambit_model::Identity;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use rustls_pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, KeyUsage};

use crate::TlsSettings;

/// Why a peer with a valid certificate is refused: its identity is not an accepted one.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerIdentityError {
    /// The server has another identity.
    #[error("the server is {}, expected {}", List(presented), List(expected))]
    Unexpected {
        /// URI names of its certificate (at most 8).
        presented: Vec<String>,
        /// Accepted identities (at most 8).
        expected: Vec<String>,
    },
    /// The client belongs to another mesh.
    #[error(
        "the client is {}, not of trust domain {trust_domain}",
        List(presented)
    )]
    ForeignTrustDomain {
        /// URI names of its certificate (at most 8).
        presented: Vec<String>,
        /// Our trust domain.
        trust_domain: String,
    },
}

/// `rustls` writes the errors of verifiers with their debug form; this one is for operators.
impl fmt::Debug for PeerIdentityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

struct List<'a>(&'a [String]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("no SPIFFE id"),
            names => f.write_str(&names.join(" or ")),
        }
    }
}

/// The chain check of both sides.
#[derive(Debug)]
pub(crate) struct ChainVerifier {
    pub(crate) settings: TlsSettings,
    pub(crate) anchors: Vec<TrustAnchor<'static>>,
}

impl ChainVerifier {
    /// Verifies a chain for one usage at a time; returns the leaf.
    pub(crate) fn verify<'a>(
        &self,
        leaf: &'a CertificateDer<'a>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        usage: KeyUsage,
    ) -> Result<EndEntityCert<'a>, rustls::Error> {
        let leaf = EndEntityCert::try_from(leaf).map_err(pki_error)?;
        let crls = self.settings.crls.as_ref().map(crate::Crls::current);
        let borrowed: Vec<&webpki::CertRevocationList<'_>> =
            crls.iter().flat_map(|crls| crls.iter()).collect();
        // No list at all leaves revocation unchecked; a list that does not cover an issuer, too
        // (the status is unknown). An outdated list still counts.
        let revocation = webpki::RevocationOptionsBuilder::new(&borrowed)
            .ok()
            .map(|options| {
                options
                    .with_depth(webpki::RevocationCheckDepth::Chain)
                    .with_status_policy(webpki::UnknownStatusPolicy::Allow)
                    .with_expiration_policy(webpki::ExpirationPolicy::Ignore)
                    .build()
            });
        leaf.verify_for_usage(
            self.settings.provider.signature_verification_algorithms.all,
            &self.anchors,
            intermediates,
            now,
            usage,
            revocation,
            None,
        )
        .map_err(pki_error)?;
        Ok(leaf)
    }

    fn provider(&self) -> &CryptoProvider {
        &self.settings.provider
    }
}

/// Verifies servers: the certificate must carry one of the expected ids, exactly.
#[derive(Debug)]
pub(crate) struct ServerVerifier {
    pub(crate) chain: Arc<ChainVerifier>,
    /// Full SPIFFE ids.
    pub(crate) expected: Box<[String]>,
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let leaf = self
            .chain
            .verify(end_entity, intermediates, now, KeyUsage::server_auth())?;
        // An empty list accepts no server: it must never come to accept all.
        let known = |name: &str| self.expected.iter().any(|expected| expected == name);
        if leaf.valid_uri_names().any(known) {
            return Ok(ServerCertVerified::assertion());
        }
        Err(identity_error(PeerIdentityError::Unexpected {
            presented: presented(&leaf),
            expected: self.expected.iter().take(8).cloned().collect(),
        }))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.chain.provider().signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.chain.provider().signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain
            .provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// Verifies clients: a certificate is required, and one of its SPIFFE ids must be of our own trust
/// domain.
#[derive(Debug)]
pub(crate) struct ClientVerifier {
    pub(crate) chain: Arc<ChainVerifier>,
    pub(crate) trust_domain: String,
}

impl ClientCertVerifier for ClientVerifier {
    /// Returns no hints: clients in a mesh need none, and they cost bytes in each handshake.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let leaf = self
            .chain
            .verify(end_entity, intermediates, now, KeyUsage::client_auth())?;
        let ours = |name: &str| {
            name.parse::<Identity>()
                .is_ok_and(|id| id.trust_domain == self.trust_domain)
        };
        if leaf.valid_uri_names().any(ours) {
            return Ok(ClientCertVerified::assertion());
        }
        Err(identity_error(PeerIdentityError::ForeignTrustDomain {
            presented: presented(&leaf),
            trust_domain: self.trust_domain.clone(),
        }))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.chain.provider().signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.chain.provider().signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain
            .provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// The identity of a leaf: its first SPIFFE id of the Kubernetes form.
pub(crate) fn identity_of(leaf: &CertificateDer<'_>) -> Option<Identity> {
    let leaf = EndEntityCert::try_from(leaf).ok()?;
    leaf.valid_uri_names().find_map(|name| name.parse().ok())
}

fn presented(leaf: &EndEntityCert<'_>) -> Vec<String> {
    leaf.valid_uri_names()
        .take(8)
        .map(|name| name.chars().take(256).collect())
        .collect()
}

fn identity_error(error: PeerIdentityError) -> rustls::Error {
    CertificateError::Other(OtherError(Arc::new(error))).into()
}

/// The alerts and texts of `rustls` for common failures; the others with their own text.
fn pki_error(error: webpki::Error) -> rustls::Error {
    use webpki::Error;
    match error {
        Error::BadDer | Error::BadDerTime | Error::TrailingData(_) => {
            CertificateError::BadEncoding.into()
        }
        Error::CertExpired { time, not_after } => {
            CertificateError::ExpiredContext { time, not_after }.into()
        }
        Error::CertNotValidYet { time, not_before } => {
            CertificateError::NotValidYetContext { time, not_before }.into()
        }
        Error::UnknownIssuer => CertificateError::UnknownIssuer.into(),
        Error::CertRevoked => CertificateError::Revoked.into(),
        Error::InvalidSignatureForPublicKey => CertificateError::BadSignature.into(),
        Error::RequiredEkuNotFoundContext(_) => CertificateError::InvalidPurpose.into(),
        other => CertificateError::Other(OtherError(Arc::new(other))).into(),
    }
}
