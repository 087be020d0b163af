//! X.509-SVID as a SPIFFE agent sends it, and its conversion to a workload certificate.

use std::fmt;

use ambit_model::Identity;
use ambit_tls::{ChainError, TlsSettings, WorkloadCert, count_uri_names, split_concatenated_der};
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use zeroize::Zeroizing;

/// Reason why an X.509-SVID cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SvidError {
    /// The agent's message has no private key.
    #[error("it has no private key")]
    MissingKey,
    /// The leaf has this number of URI SANs instead of exactly one.
    #[error("its leaf has {0} URI names, and an X.509-SVID has one")]
    UriSanCount(usize),
    /// The certificate's identity differs from the SPIFFE ID in the agent's message.
    #[error("its leaf is of {0}")]
    IdentityMismatch(Box<Identity>),
    /// The certificate chain, the bundle or the key is unusable.
    #[error(transparent)]
    Chain(#[from] ChainError),
}

/// X.509-SVID with its private key, both not decoded yet.
#[derive(PartialEq, Eq)]
pub(crate) struct Svid {
    /// Certificate chain in DER, leaf first; an element may hold several concatenated certificates.
    chain: Vec<Box<[u8]>>,
    /// Private key: PKCS#8 in DER.
    key: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for Svid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Svid").finish_non_exhaustive()
    }
}

impl Svid {
    pub(crate) fn new<'a>(chain: impl IntoIterator<Item = &'a [u8]>, key: &[u8]) -> Self {
        Self {
            chain: chain.into_iter().map(Into::into).collect(),
            key: Zeroizing::new(key.to_vec()),
        }
    }

    /// Decodes the SVID to a workload certificate of this identity, with the roots of its trust domain.
    pub(crate) fn certificate(
        &self,
        settings: &TlsSettings,
        identity: &Identity,
        roots: Vec<CertificateDer<'static>>,
    ) -> Result<WorkloadCert, SvidError> {
        if self.key.is_empty() {
            return Err(SvidError::MissingKey);
        }
        let chain = split_concatenated_der(&self.chain.concat())?;
        let names = chain.first().map(count_uri_names).transpose()?;
        match names.unwrap_or_default() {
            1 => {}
            several => return Err(SvidError::UriSanCount(several)),
        }
        let key = PrivatePkcs8KeyDer::from(self.key.to_vec());
        let certificate = WorkloadCert::new(settings, chain, key.into(), roots)?;
        if certificate.identity() != identity {
            let other = Box::new(certificate.identity().clone());
            return Err(SvidError::IdentityMismatch(other));
        }
        Ok(certificate)
    }
}
