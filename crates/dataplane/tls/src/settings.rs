//! TLS settings of a process: versions, cipher suites, key exchange, revocation lists, accepted trust domains.

use std::sync::Arc;

use ambit_rt::{Env, EnvError};
use rustls::{
    SupportedProtocolVersion,
    crypto::{CryptoProvider, aws_lc_rs},
    version::{TLS12, TLS13},
};

use crate::{RevocationLists, TrustDomains};

static TLS12_AND_TLS13: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];
static TLS13_ONLY: &[&SupportedProtocolVersion] = &[&TLS13];

/// ALPN protocol of every connection in the mesh, and to its control plane.
pub const ALPN_H2: &[u8] = b"h2";

/// TLS settings of the process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    pub(crate) provider: Arc<CryptoProvider>,
    pub(crate) tls12: bool,
    pub(crate) crls: Option<RevocationLists>,
    pub(crate) trust_domains: TrustDomains,
}

impl Default for TlsSettings {
    fn default() -> Self {
        Self::new(false, false)
    }
}

impl TlsSettings {
    /// Creates settings for TLS 1.3 (and 1.2 if requested) with AES-GCM only; `post_quantum_only` restricts key
    /// exchange to X25519MLKEM768. AES-128 is preferred to AES-256: it takes about a quarter less CPU for bulk data,
    /// and its strength matches that of the P-256 certificates. Peers that offer only one of the two, or prefer
    /// AES-256 as ztunnel does, get their choice.
    pub fn new(tls12: bool, post_quantum_only: bool) -> Self {
        use aws_lc_rs::{cipher_suite as suite, kx_group as kx};
        let mut cipher_suites = vec![
            suite::TLS13_AES_128_GCM_SHA256,
            suite::TLS13_AES_256_GCM_SHA384,
        ];
        if tls12 {
            cipher_suites.extend([
                suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
                suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
                suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
                suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
            ]);
        }
        let kx_groups = if post_quantum_only {
            vec![kx::X25519MLKEM768]
        } else {
            // A client sends a key share for the first group.
            vec![kx::X25519, kx::SECP256R1, kx::SECP384R1, kx::X25519MLKEM768]
        };
        let provider = CryptoProvider {
            cipher_suites,
            kx_groups,
            ..aws_lc_rs::default_provider()
        };
        Self {
            provider: Arc::new(provider),
            tls12,
            crls: None,
            trust_domains: TrustDomains::new(),
        }
    }

    /// Reads settings from `TLS12_ENABLED` and `COMPLIANCE_POLICY` (`pqc` or unset). [`Self::with_crls`] adds
    /// revocation lists.
    pub fn from_env(env: &Env) -> Result<Self, EnvError> {
        let tls12 = env.flag("TLS12_ENABLED")?.unwrap_or(false);
        let post_quantum_only = match env.get("COMPLIANCE_POLICY") {
            None | Some("") => false,
            Some("pqc") => true,
            Some(other) => {
                return Err(EnvError {
                    variable: "COMPLIANCE_POLICY".to_owned(),
                    value: other.to_owned(),
                    expected: "empty or pqc",
                });
            }
        };
        Ok(Self::new(tls12, post_quantum_only))
    }

    /// Adds revocation lists, against which certificates of peers in the mesh are checked.
    pub fn with_crls(mut self, crls: RevocationLists) -> Self {
        self.crls = Some(crls);
        self
    }

    /// Sets the trust domains that are accepted in addition to the mesh's own.
    pub fn with_trust_domains(mut self, trust_domains: TrustDomains) -> Self {
        self.trust_domains = trust_domains;
        self
    }

    /// Returns the trust domains that are accepted in addition to the mesh's own.
    pub fn trust_domains(&self) -> &TrustDomains {
        &self.trust_domains
    }

    /// Returns the revocation lists, if any.
    pub fn crls(&self) -> Option<&RevocationLists> {
        self.crls.as_ref()
    }

    /// Returns the crypto provider, for TLS configurations that are built elsewhere.
    pub fn provider(&self) -> Arc<CryptoProvider> {
        self.provider.clone()
    }

    /// Returns the protocol versions, for TLS configurations that are built elsewhere.
    pub fn protocol_versions(&self) -> &'static [&'static SupportedProtocolVersion] {
        if self.tls12 {
            TLS12_AND_TLS13
        } else {
            TLS13_ONLY
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(pairs: &[(&str, &str)]) -> Result<TlsSettings, EnvError> {
        TlsSettings::from_env(&Env::from_pairs(pairs.iter().copied()))
    }

    #[test]
    fn tls_1_3_alone_is_the_default() {
        let settings = from(&[]).unwrap();
        assert_eq!(settings.protocol_versions().len(), 1);
        assert_eq!(settings.provider.cipher_suites.len(), 2);
        assert_eq!(
            from(&[("TLS12_ENABLED", "true")])
                .unwrap()
                .protocol_versions()
                .len(),
            2
        );
    }

    #[test]
    fn the_pqc_policy_leaves_one_key_exchange() {
        let settings = from(&[("COMPLIANCE_POLICY", "pqc")]).unwrap();
        assert_eq!(settings.provider.kx_groups.len(), 1);
        assert!(from(&[("COMPLIANCE_POLICY", "fips")]).is_err());
    }
}
