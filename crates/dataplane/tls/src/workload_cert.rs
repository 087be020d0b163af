//! A workload's certificate with its key and the mesh's roots, and the TLS configurations built
//! from it.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
};

use ambit_model::Identity;
use parking_lot::Mutex;
use rustls::{
    CertificateError, ClientConfig, RootCertStore, ServerConfig,
    client::{ResolvesClientCert, Resumption},
    crypto::aws_lc_rs::sign::any_supported_type,
    server::NoServerSessionStorage,
    sign::{CertifiedKey, SingleCertAndKey},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio::sync::watch;
use webpki::KeyUsage;
use zeroize::Zeroizing;

use crate::{
    ChainError, TlsSettings,
    chain::{self, LeafCertificate},
    settings::ALPN_H2,
    verify::{ClientVerifier, PeerRole, PeerVerifier, ServerVerifier},
};

/// Maximum cached client configurations of a certificate, one for each set of expected identities. Beyond it, all are
/// dropped and built again, which takes microseconds each.
const MAX_CLIENT_CONFIGS: usize = 4096;

/// Reason why the peer of an established connection is no longer accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrustWithdrawalReason {
    /// The peer's certificate was revoked.
    Revoked,
    /// The peer's trust domain is no longer accepted, or has other roots now.
    TrustDomainChanged,
}

/// Immutable certificate of one identity, with its private key; renewal creates a new value.
pub struct WorkloadCert {
    identity: Identity,
    key: Arc<CertifiedKey>,
    roots: Vec<CertificateDer<'static>>,
    not_before: SystemTime,
    not_after: SystemTime,
    settings: TlsSettings,
    verifier: Arc<PeerVerifier>,
    cached_server_config: OnceLock<Result<Arc<ServerConfig>, rustls::Error>>,
    cached_client_configs: Mutex<HashMap<Box<[Identity]>, Arc<ClientConfig>>>,
}

impl WorkloadCert {
    /// Builds a certificate from its chain (leaf first, without roots), private key and the mesh's roots. Rejects a
    /// key that does not match the leaf, a leaf without a SPIFFE ID, and a chain that is not currently valid for both
    /// sides of a connection.
    pub fn new(
        settings: &TlsSettings,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        roots: Vec<CertificateDer<'static>>,
    ) -> Result<Self, ChainError> {
        Self::valid_at(settings, chain, key, roots, SystemTime::now())
    }

    /// Builds a certificate like [`Self::new`], but verifies the chain for a given time.
    pub fn valid_at(
        settings: &TlsSettings,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        roots: Vec<CertificateDer<'static>>,
        now: SystemTime,
    ) -> Result<Self, ChainError> {
        // Wiped on every return. The loaded key is the library's, which wipes it when freed.
        let key = Zeroizing::new(key);
        let Some((leaf_der, intermediates)) = chain.split_first() else {
            return Err(ChainError::Empty);
        };
        let leaf = LeafCertificate::parse(leaf_der)?;
        let mut store = RootCertStore::empty();
        for root in &roots {
            store.add(root.clone()).map_err(ChainError::InvalidRoot)?;
        }
        // Revocation lists apply to peers only.
        let own = TlsSettings {
            crls: None,
            ..settings.clone()
        };
        let verifier = PeerVerifier {
            settings: own,
            anchors: store.roots,
            trust_domain: leaf.identity.trust_domain.clone(),
        };
        let since_epoch = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        for usage in [KeyUsage::server_auth(), KeyUsage::client_auth()] {
            verifier
                .verify_own_chain(
                    leaf_der,
                    intermediates,
                    UnixTime::since_unix_epoch(since_epoch),
                    usage,
                )
                .map_err(ChainError::Unverified)?;
        }
        let verifier = PeerVerifier {
            settings: settings.clone(),
            ..verifier
        };
        let key = any_supported_type(&key).map_err(ChainError::InvalidKey)?;
        let key = CertifiedKey::new(chain, key);
        key.keys_match().map_err(ChainError::InvalidKey)?;
        Ok(Self {
            identity: leaf.identity,
            key: Arc::new(key),
            roots,
            not_before: leaf.not_before,
            not_after: leaf.not_after,
            settings: settings.clone(),
            verifier: Arc::new(verifier),
            cached_server_config: OnceLock::new(),
            cached_client_configs: Mutex::default(),
        })
    }

    /// Builds a certificate from the PEM texts in a response of the CSR API: the first is the leaf, the last are the
    /// roots.
    pub fn from_response(
        settings: &TlsSettings,
        identity: &Identity,
        key: PrivateKeyDer<'static>,
        response: &[String],
    ) -> Result<Self, ChainError> {
        let (chain, roots) = chain::split_response(response)?;
        let cert = Self::new(settings, chain, key, roots)?;
        if cert.identity != *identity {
            return Err(ChainError::IdentityMismatch {
                got: Box::new(cert.identity),
                expected: Box::new(identity.clone()),
            });
        }
        Ok(cert)
    }

    /// Returns the identity of the certificate.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the start of the certificate's validity.
    pub fn not_before(&self) -> SystemTime {
        self.not_before
    }

    /// Returns the end of the certificate's validity.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// Whether the certificate has expired.
    pub fn is_expired(&self, now: SystemTime) -> bool {
        now >= self.not_after
    }

    /// Returns the time of renewal: half of the certificate's lifetime.
    pub fn renewal_time(&self) -> SystemTime {
        let life = self
            .not_after
            .duration_since(self.not_before)
            .unwrap_or(Duration::ZERO);
        self.not_before + life / 2
    }

    /// Returns the certificate chain: leaf and intermediates.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.key.cert
    }

    /// Returns the root certificates of the mesh.
    pub fn roots(&self) -> &[CertificateDer<'static>] {
        &self.roots
    }

    /// Returns the client configuration for servers that must present one of the `expected` identities. An empty list
    /// accepts no server. Cached for each list.
    pub fn client_config(&self, expected: &[Identity]) -> Result<Arc<ClientConfig>, rustls::Error> {
        if let Some(config) = self.cached_client_configs.lock().get(expected) {
            return Ok(config.clone());
        }
        let config = Arc::new(self.make_client_config(expected)?);
        let mut clients = self.cached_client_configs.lock();
        if clients.len() >= MAX_CLIENT_CONFIGS {
            clients.clear();
        }
        Ok(clients.entry(expected.into()).or_insert(config).clone())
    }

    /// Returns the server configuration, which requires client certificates of an accepted trust domain. Cached.
    pub fn server_config(&self) -> Result<Arc<ServerConfig>, rustls::Error> {
        self.cached_server_config
            .get_or_init(|| self.make_server_config().map(Arc::new))
            .clone()
    }

    /// Returns the reason why a peer that was accepted at a given time is no longer accepted, if there is one. The
    /// expiry of its certificate since then is none.
    ///
    /// Evaluated again for established connections whenever revocation lists or trust domains change.
    pub fn withdrawal_reason(
        &self,
        peer: PeerRole<'_>,
        chain: &[CertificateDer<'_>],
        accepted: SystemTime,
    ) -> Option<TrustWithdrawalReason> {
        let (leaf, intermediates) = chain.split_first()?;
        let accepted = accepted
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let then = UnixTime::since_unix_epoch(accepted);
        match self.verifier.verify(peer, leaf, intermediates, then) {
            Err(rustls::Error::InvalidCertificate(CertificateError::Revoked)) => {
                Some(TrustWithdrawalReason::Revoked)
            }
            Err(rustls::Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::Other(_),
            )) if self.verifier.depends_on_trust_domains(leaf) => {
                Some(TrustWithdrawalReason::TrustDomainChanged)
            }
            Ok(()) | Err(_) => None,
        }
    }

    /// Returns a future that completes once a peer that is accepted now is no longer accepted; `None` if the decision
    /// depends neither on revocation lists nor on configured trust domains.
    pub fn wait_for_trust_withdrawal(
        self: &Arc<Self>,
        peer: PeerRole<'_>,
        chain: &[CertificateDer<'static>],
    ) -> Option<impl Future<Output = TrustWithdrawalReason> + Send + use<>> {
        let mut lists = self.settings.crls().map(crate::RevocationLists::changes);
        let leaf = chain.first();
        let mut domains = leaf
            .is_some_and(|leaf| self.verifier.depends_on_trust_domains(leaf))
            .then(|| self.settings.trust_domains.changes());
        if lists.is_none() && domains.is_none() {
            return None;
        }
        let expected: Option<Box<[Identity]>> = match peer {
            PeerRole::Client => None,
            PeerRole::Server(expected) => Some(expected.into()),
        };
        let (certificate, chain) = (self.clone(), chain.to_vec());
        let accepted = SystemTime::now();
        Some(async move {
            loop {
                let peer = expected
                    .as_deref()
                    .map_or(PeerRole::Client, PeerRole::Server);
                if let Some(why) = certificate.withdrawal_reason(peer, &chain, accepted) {
                    return why;
                }
                tokio::select! {
                    () = wait_for_change(&mut lists) => {}
                    () = wait_for_change(&mut domains) => {}
                }
            }
        })
    }

    fn make_client_config(&self, expected: &[Identity]) -> Result<ClientConfig, rustls::Error> {
        let verifier = ServerVerifier {
            peers: self.verifier.clone(),
            expected: expected.into(),
        };
        let mut config = ClientConfig::builder_with_provider(self.settings.provider())
            .with_protocol_versions(self.settings.protocol_versions())?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_cert_resolver(Arc::new(OwnCertResolver(self.key.clone())));
        config.alpn_protocols = vec![ALPN_H2.to_vec()];
        config.enable_sni = false;
        // A resumed session would skip the checks that a renewal or a revocation changes, and the
        // connections here are few and long-lived.
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    fn make_server_config(&self) -> Result<ServerConfig, rustls::Error> {
        let verifier = ClientVerifier {
            peers: self.verifier.clone(),
        };
        let mut config = ServerConfig::builder_with_provider(self.settings.provider())
            .with_protocol_versions(self.settings.protocol_versions())?
            .with_client_cert_verifier(Arc::new(verifier))
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(self.key.clone())));
        config.alpn_protocols = vec![ALPN_H2.to_vec()];
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(config)
    }
}

/// Waits for the next change notification. Never completes without a receiver, or after its sender is dropped.
async fn wait_for_change(changes: &mut Option<watch::Receiver<u64>>) {
    if let Some(changes) = changes
        && changes.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

impl fmt::Debug for WorkloadCert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkloadCert")
            .field("identity", &self.identity)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct OwnCertResolver(Arc<CertifiedKey>);

impl ResolvesClientCert for OwnCertResolver {
    fn resolve(
        &self,
        _root_hint_subjects: &[&[u8]],
        _schemes: &[rustls::SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}
