//! Verifies a peer's certificate: its chain to the roots of its trust domain, and its SPIFFE ID.
//!
//! Host names play no part in the mesh. No result is cached between handshakes.

use std::{fmt, sync::Arc};

use ambit_model::{ArcStr, Identity};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use rustls_pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, KeyUsage};

use crate::{TlsSettings, trust_domains::TrustDomainSnapshot};

/// Error of a peer whose certificate is valid but whose identity is not accepted.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerIdentityError {
    /// The server's certificate has none of the expected identities.
    #[error(
        "the server is {}, expected {}",
        CommaSeparated(presented),
        CommaSeparated(expected)
    )]
    IdentityMismatch {
        /// URI SANs of the certificate (at most 8).
        presented: Vec<String>,
        /// Identities that are accepted (at most 8).
        expected: Vec<String>,
    },
    /// The client's trust domain is not accepted.
    #[error(
        "the client is {}, not of trust domain {trust_domain}",
        CommaSeparated(presented)
    )]
    ForeignTrustDomain {
        /// URI SANs of the certificate (at most 8).
        presented: Vec<String>,
        /// Trust domain of the verifying workload.
        trust_domain: String,
    },
    /// The peer has SPIFFE IDs of several trust domains, whose roots differ.
    #[error(
        "the peer is {}: all its SPIFFE ids must be of one trust domain",
        CommaSeparated(presented)
    )]
    SeveralTrustDomains {
        /// URI SANs of the certificate (at most 8).
        presented: Vec<String>,
    },
}

/// Formats the error for operators, since `rustls` prints errors of verifiers in their debug form.
impl fmt::Debug for PeerIdentityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

struct CommaSeparated<'a>(&'a [String]);

impl fmt::Display for CommaSeparated<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("no SPIFFE id"),
            names => f.write_str(&names.join(" or ")),
        }
    }
}

/// Role of a peer in the handshake, with the identities that are accepted in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerRole<'a> {
    /// Client, which may have any identity in an accepted trust domain.
    Client,
    /// Server, which must have one of these identities.
    Server(&'a [Identity]),
}

/// Verifier of peer certificates, for servers and clients.
#[derive(Debug)]
pub(crate) struct PeerVerifier {
    pub(crate) settings: TlsSettings,
    /// Root certificates of the mesh's CA.
    pub(crate) anchors: Vec<TrustAnchor<'static>>,
    /// Trust domain of the workload's own identity.
    pub(crate) trust_domain: ArcStr,
}

impl PeerVerifier {
    /// Verifies a peer's chain with the roots of its trust domain, and its identity.
    pub(crate) fn verify(
        &self,
        peer: PeerRole<'_>,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let leaf = EndEntityCert::try_from(leaf).map_err(pki_error)?;
        let accepted = self.settings.trust_domains.current();
        let domain = certificate_trust_domain(&leaf)?;
        self.verify_peer_chain(
            &accepted,
            domain,
            &leaf,
            intermediates,
            now,
            required_key_usage(peer),
        )?;
        match peer {
            PeerRole::Client => self.verify_client(&accepted, domain, &leaf),
            PeerRole::Server(expected) => self.verify_server(&accepted, &leaf, expected),
        }
    }

    /// Verifies the certificate chain of the workload itself with the roots of the mesh's CA.
    pub(crate) fn verify_own_chain(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        usage: KeyUsage,
    ) -> Result<(), rustls::Error> {
        let leaf = EndEntityCert::try_from(leaf).map_err(pki_error)?;
        self.verify_chain(&self.anchors, &leaf, intermediates, now, usage)
    }

    /// Whether a change of the accepted trust domains or their roots may change the decision on this peer.
    pub(crate) fn depends_on_trust_domains(&self, leaf: &CertificateDer<'_>) -> bool {
        let accepted = self.settings.trust_domains.current();
        let own = self.trust_domain.as_str();
        let leaf = EndEntityCert::try_from(leaf);
        let domain = leaf.as_ref().ok().map(certificate_trust_domain);
        domain != Some(Ok(Some(own))) || accepted.has_had_roots(own)
    }

    /// Verifies a peer's chain with the roots of a trust domain only.
    fn verify_peer_chain(
        &self,
        accepted: &TrustDomainSnapshot,
        domain: Option<&str>,
        leaf: &EndEntityCert<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        usage: KeyUsage,
    ) -> Result<(), rustls::Error> {
        let own = self.trust_domain.as_str();
        // A peer without a SPIFFE ID is refused in any case.
        let rooted = accepted.domain_of_roots(own, domain.unwrap_or(own));
        let further = accepted.anchors(rooted);
        if let Some(further) = further
            && rooted != own
        {
            return self.verify_chain(further, leaf, intermediates, now, usage);
        }
        let verified = self.verify_chain(&self.anchors, leaf, intermediates, now, usage);
        match (verified, further) {
            (Err(error), Some(further)) if error == unknown_issuer() => {
                self.verify_chain(further, leaf, intermediates, now, usage)
            }
            (verified, _) => verified,
        }
    }

    /// Verifies a certificate chain at a time for one extended key usage (client or server).
    fn verify_chain(
        &self,
        anchors: &[TrustAnchor<'_>],
        leaf: &EndEntityCert<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        usage: KeyUsage,
    ) -> Result<(), rustls::Error> {
        let crls = self
            .settings
            .crls
            .as_ref()
            .map(crate::RevocationLists::current);
        let borrowed: Vec<&webpki::CertRevocationList<'_>> =
            crls.iter().flat_map(|crls| crls.iter()).collect();
        // Without any list, revocation is not checked, nor for issuers that no list covers (the
        // status is unknown). An outdated list still counts.
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
            anchors,
            intermediates,
            now,
            usage,
            revocation,
            None,
        )
        .map_err(pki_error)?;
        Ok(())
    }

    fn verify_client(
        &self,
        accepted: &TrustDomainSnapshot,
        domain: Option<&str>,
        leaf: &EndEntityCert<'_>,
    ) -> Result<(), rustls::Error> {
        let own = self.trust_domain.as_str();
        let is_accepted = domain.is_some_and(|domain| accepted.accepts(own, domain));
        // Calls of waypoints are authorized by name alone, which another authority could sign.
        let may_be = |id: &Identity| id.trust_domain == own || !id.is_for_waypoint_calls();
        if is_accepted && certificate_identity(leaf).is_some_and(|id| may_be(&id)) {
            return Ok(());
        }
        Err(identity_error(PeerIdentityError::ForeignTrustDomain {
            presented: presented_names(leaf),
            trust_domain: own.to_owned(),
        }))
    }

    /// Verifies that a server has one of the expected identities, under any alias of its trust domain. An empty list
    /// accepts no server; it must never mean all.
    fn verify_server(
        &self,
        accepted: &TrustDomainSnapshot,
        leaf: &EndEntityCert<'_>,
        expected: &[Identity],
    ) -> Result<(), rustls::Error> {
        let is_expected = |id: Identity| {
            expected.iter().any(|one| {
                one.namespace == id.namespace
                    && one.service_account == id.service_account
                    && accepted.is_same_domain(
                        &self.trust_domain,
                        &one.trust_domain,
                        &id.trust_domain,
                    )
            })
        };
        let mut identities = leaf.valid_uri_names().filter_map(|name| name.parse().ok());
        if identities.any(is_expected) {
            return Ok(());
        }
        Err(identity_error(PeerIdentityError::IdentityMismatch {
            presented: presented_names(leaf),
            expected: expected.iter().take(8).map(ToString::to_string).collect(),
        }))
    }

    fn provider(&self) -> &CryptoProvider {
        &self.settings.provider
    }
}

/// rustls verifier of servers: the certificate must have one of the expected SPIFFE IDs.
#[derive(Debug)]
pub(crate) struct ServerVerifier {
    pub(crate) peers: Arc<PeerVerifier>,
    pub(crate) expected: Box<[Identity]>,
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
        let expected = PeerRole::Server(&self.expected);
        self.peers
            .verify(expected, end_entity, intermediates, now)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.peers.provider().signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.peers.provider().signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.peers
            .provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// rustls verifier of clients: a certificate is required, and its SPIFFE ID must be of an accepted trust domain.
#[derive(Debug)]
pub(crate) struct ClientVerifier {
    pub(crate) peers: Arc<PeerVerifier>,
}

impl ClientCertVerifier for ClientVerifier {
    /// Returns an empty list of CA names, since mesh clients need none and the names would enlarge each handshake.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.peers
            .verify(PeerRole::Client, end_entity, intermediates, now)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.peers.provider().signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.peers.provider().signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.peers
            .provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// Returns the identity of a leaf: its first SPIFFE ID of the form `spiffe://<trust
/// domain>/ns/<namespace>/sa/<service account>`.
pub(crate) fn leaf_identity(leaf: &CertificateDer<'_>) -> Option<Identity> {
    certificate_identity(&EndEntityCert::try_from(leaf).ok()?)
}

fn certificate_identity(leaf: &EndEntityCert<'_>) -> Option<Identity> {
    leaf.valid_uri_names().find_map(|name| name.parse().ok())
}

/// Returns the trust domain of all SPIFFE IDs of a leaf; `None` if it has no SPIFFE ID.
fn certificate_trust_domain<'a>(
    leaf: &'a EndEntityCert<'_>,
) -> Result<Option<&'a str>, rustls::Error> {
    let ids = leaf.valid_uri_names();
    let mut domains = ids.filter_map(|name| name.strip_prefix("spiffe://")?.split('/').next());
    let first = domains.next();
    match first.is_some_and(|first| domains.any(|other| other != first)) {
        true => Err(identity_error(PeerIdentityError::SeveralTrustDomains {
            presented: presented_names(leaf),
        })),
        false => Ok(first),
    }
}

fn required_key_usage(peer: PeerRole<'_>) -> KeyUsage {
    match peer {
        PeerRole::Client => KeyUsage::client_auth(),
        PeerRole::Server(_) => KeyUsage::server_auth(),
    }
}

fn unknown_issuer() -> rustls::Error {
    CertificateError::UnknownIssuer.into()
}

fn presented_names(leaf: &EndEntityCert<'_>) -> Vec<String> {
    leaf.valid_uri_names()
        .take(8)
        .map(|name| name.chars().take(256).collect())
        .collect()
}

fn identity_error(error: PeerIdentityError) -> rustls::Error {
    CertificateError::Other(OtherError(Arc::new(error))).into()
}

/// Maps common errors to those of `rustls`, which have their alerts and texts; others keep their own text.
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
        Error::UnknownIssuer => unknown_issuer(),
        Error::CertRevoked => CertificateError::Revoked.into(),
        Error::InvalidSignatureForPublicKey => CertificateError::BadSignature.into(),
        Error::RequiredEkuNotFoundContext(_) => CertificateError::InvalidPurpose.into(),
        other => CertificateError::Other(OtherError(Arc::new(other))).into(),
    }
}
