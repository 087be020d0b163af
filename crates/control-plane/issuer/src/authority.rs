//! Key and certificates of a CA. Signs workload certificates, serving certificates, and CRLs.

use std::{
    net::IpAddr,
    time::{Duration, SystemTime},
};

use ambit_model::Identity;
use ambit_tls::{ChainError, TlsSettings, WorkloadCert, pem, validity};
use rand::Rng;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams,
    CertificateSigningRequestParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData,
    RevokedCertParams, SanType, SerialNumber,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

mod renewal;

/// Backdating of certificates, since peers' clocks may be behind.
const NOT_BEFORE_BACKDATE: Duration = Duration::from_secs(120);
/// Maximum size of a certificate request, in bytes of PEM.
const MAX_REQUEST_BYTES: usize = 16 * 1024;

/// CA: the signing key, its certificate, and the chain to the root.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Signing certificate and the intermediates between it and the root, lowest first; empty when
    /// the root itself signs.
    intermediates: Vec<CertificateDer<'static>>,
    roots: Vec<CertificateDer<'static>>,
    not_after: SystemTime,
}

/// Reason why the files of a CA cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// Invalid file of certificates.
    #[error("{file} cannot be used")]
    InvalidCertificates {
        /// `ca-cert.pem`, `cert-chain.pem` or `root-cert.pem`.
        file: &'static str,
        /// Cause of the error.
        #[source]
        source: ChainError,
    },
    /// The CA's private key is invalid.
    #[error("ca-key.pem is not a private key")]
    InvalidKey(#[source] rcgen::Error),
    /// The CA's certificate is invalid.
    #[error("ca-cert.pem cannot sign")]
    InvalidCertificate(#[source] rcgen::Error),
    /// The certificate's basic constraints do not allow it to sign certificates.
    #[error("ca-cert.pem is not the certificate of a certificate authority")]
    NotAuthority,
    /// Verification of a certificate that this CA has issued fails.
    #[error("certificates signed by ca-key.pem do not verify against root-cert.pem")]
    VerificationFailed(#[source] IssueError),
    /// The root's subject cannot be reproduced exactly in a new certificate.
    #[error("the root's name cannot be copied to a new certificate; make a root by hand")]
    UnsupportedSubject,
    /// Failure to generate a CA.
    #[error("cannot make a certificate authority")]
    Generate(#[source] rcgen::Error),
}

/// Reason why the CA did not issue a certificate.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// The certificate request has this many bytes, above the limit.
    #[error("the certificate request has {0} bytes, at most {MAX_REQUEST_BYTES} are read")]
    TooLarge(usize),
    /// The certificate request is malformed, or its signature is invalid.
    #[error("the certificate request cannot be read")]
    InvalidRequest(#[source] rcgen::Error),
    /// The request's public key is of an unsupported type.
    #[error("the key of the certificate request is neither P-256, P-384, Ed25519 nor RSA")]
    UnsupportedKey,
    /// The CA's own certificate is about to expire.
    #[error("the certificate authority's own certificate expires before the requested one begins")]
    AuthorityExpired,
    /// A name is not valid as a SAN.
    #[error("{name:?} is not allowed in a certificate")]
    InvalidName {
        /// Name that was rejected.
        name: String,
        /// Cause of the error.
        #[source]
        source: rcgen::Error,
    },
    /// Failure to sign the certificate.
    #[error("signing failed")]
    Sign(#[source] rcgen::Error),
    /// The issued certificate does not verify.
    #[error("the issued certificate does not verify")]
    VerificationFailed(#[source] ChainError),
}

impl Authority {
    /// Generates a self-signed root CA.
    pub fn new_root(
        organization: &str,
        ttl: Duration,
        now: SystemTime,
    ) -> Result<Self, AuthorityError> {
        let key =
            KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(AuthorityError::Generate)?;
        let params = ca_params(organization, "root", ttl, now);
        let root = params.self_signed(&key).map_err(AuthorityError::Generate)?;
        Ok(Self {
            roots: vec![root.der().clone()],
            issuer: Issuer::new(params, key),
            intermediates: Vec::new(),
            not_after: now + ttl,
        })
    }

    /// Issues the certificate of an intermediate CA with a new key.
    pub fn new_intermediate(
        &self,
        organization: &str,
        ttl: Duration,
        now: SystemTime,
    ) -> Result<Self, AuthorityError> {
        let key =
            KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(AuthorityError::Generate)?;
        let params = ca_params(organization, "intermediate", ttl, now);
        let cert = params
            .signed_by(&key, &self.issuer)
            .map_err(AuthorityError::Generate)?;
        let mut intermediates = vec![cert.der().clone()];
        intermediates.extend(self.intermediates.iter().cloned());
        Ok(Self {
            issuer: Issuer::new(params, key),
            intermediates,
            roots: self.roots.clone(),
            not_after: (now + ttl).min(self.not_after),
        })
    }

    /// Loads a plugged-in CA from the texts of four PEM files (Istio's `cacerts`): certificate, key, chain up to the
    /// root (may be empty or contain the certificate), roots. Rejects a CA whose certificates would not verify now.
    pub fn from_pem(
        ca_cert: &str,
        ca_key: &str,
        cert_chain: &str,
        root_cert: &str,
    ) -> Result<Self, AuthorityError> {
        let read = |file, text: &str| {
            pem::parse_certificates(0, text)
                .map_err(|source| AuthorityError::InvalidCertificates { file, source })
        };
        let own = read("ca-cert.pem", ca_cert)?.swap_remove(0);
        let roots = read("root-cert.pem", root_cert)?;
        let mut intermediates = vec![own.clone()];
        if !cert_chain.trim().is_empty() {
            intermediates.extend(read("cert-chain.pem", cert_chain)?);
        }
        let mut seen = std::collections::HashSet::new();
        intermediates.retain(|cert| !roots.contains(cert) && seen.insert(cert.clone()));
        let key = KeyPair::from_pem(ca_key).map_err(AuthorityError::InvalidKey)?;
        let not_after = parse_ca_expiry(&own)?;
        let issuer =
            Issuer::from_ca_cert_der(&own, key).map_err(AuthorityError::InvalidCertificate)?;
        let authority = Self {
            issuer,
            intermediates,
            roots,
            not_after,
        };
        authority
            .verify_chain(SystemTime::now())
            .map_err(AuthorityError::VerificationFailed)?;
        Ok(authority)
    }

    /// Issues a certificate and verifies it, to detect mismatched keys, gaps in the chain, path length limits and
    /// expiry.
    fn verify_chain(&self, now: SystemTime) -> Result<(), IssueError> {
        let identity = Identity::new("check", "check", "check");
        let (chain, key) = self.issue_workload(&identity, Duration::from_secs(60), now)?;
        WorkloadCert::valid_at(&TlsSettings::default(), chain, key, self.roots.clone(), now)
            .map(drop)
            .map_err(IssueError::VerificationFailed)
    }

    /// Issues a workload certificate for the public key of a certificate request; ignores the names in the request.
    ///
    /// The result has the order of a CSR API response: leaf, intermediates, roots as one text. The lifetime is limited
    /// to that of the CA.
    pub fn issue(
        &self,
        request_pem: &str,
        identity: &Identity,
        ttl: Duration,
        now: SystemTime,
    ) -> Result<Vec<String>, IssueError> {
        let key = public_key_of_request(request_pem)?;
        let leaf = self.sign(&key, identity, ttl, now)?;
        let mut answer = vec![pem::encode_pem("CERTIFICATE", &leaf)];
        answer.extend(
            self.intermediates
                .iter()
                .map(|cert| pem::encode_pem("CERTIFICATE", cert)),
        );
        answer.push(self.root_pem());
        Ok(answer)
    }

    fn sign(
        &self,
        key: &impl PublicKeyData,
        identity: &Identity,
        ttl: Duration,
        now: SystemTime,
    ) -> Result<CertificateDer<'static>, IssueError> {
        let name = identity.to_string();
        let san = name
            .clone()
            .try_into()
            .map_err(|source| IssueError::InvalidName { name, source })?;
        let mut params = self.leaf_params(vec![SanType::URI(san)], ttl, now)?;
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params
            .signed_by(key, &self.issuer)
            .map(Into::into)
            .map_err(IssueError::Sign)
    }

    /// Issues a workload certificate with a new key. The chain does not include the root.
    ///
    /// # Errors
    ///
    /// If the CA cannot sign.
    pub fn issue_workload(
        &self,
        identity: &Identity,
        ttl: Duration,
        now: SystemTime,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), IssueError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(IssueError::Sign)?;
        let mut chain = vec![self.sign(&key, identity, ttl, now)?];
        chain.extend(self.intermediates.iter().cloned());
        Ok((chain, PrivatePkcs8KeyDer::from(key).into()))
    }

    /// Issues a serving certificate with a new key for DNS names and IP addresses. The chain does not
    /// include the root.
    pub fn issue_serving(
        &self,
        names: &[String],
        ttl: Duration,
        now: SystemTime,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), IssueError> {
        let sans = names
            .iter()
            .map(|name| match name.parse::<IpAddr>() {
                Ok(ip) => Ok(SanType::IpAddress(ip)),
                Err(_) => name
                    .clone()
                    .try_into()
                    .map(SanType::DnsName)
                    .map_err(|source| IssueError::InvalidName {
                        name: name.clone(),
                        source,
                    }),
            })
            .collect::<Result<Vec<_>, _>>()?;
        let mut params = self.leaf_params(sans, ttl, now)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(IssueError::Sign)?;
        let leaf = params
            .signed_by(&key, &self.issuer)
            .map_err(IssueError::Sign)?;
        let mut chain = vec![leaf.into()];
        chain.extend(self.intermediates.iter().cloned());
        Ok((chain, PrivatePkcs8KeyDer::from(key).into()))
    }

    /// Returns the parameters of a leaf certificate. With an empty subject the SANs are a critical extension, as the
    /// SPIFFE X.509 profile requires.
    fn leaf_params(
        &self,
        sans: Vec<SanType>,
        ttl: Duration,
        now: SystemTime,
    ) -> Result<CertificateParams, IssueError> {
        if now >= self.not_after {
            return Err(IssueError::AuthorityExpired);
        }
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = sans;
        params.serial_number = Some(random_serial());
        params.not_before = (now - NOT_BEFORE_BACKDATE).into();
        params.not_after = (now + ttl).min(self.not_after).into();
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
        ];
        params.use_authority_key_identifier_extension = true;
        Ok(params)
    }

    /// Returns the roots as one PEM text, for clients.
    pub fn root_pem(&self) -> String {
        self.roots
            .iter()
            .map(|root| pem::encode_pem("CERTIFICATE", root))
            .collect()
    }

    /// Returns the root certificates that clients trust.
    pub fn roots(&self) -> &[CertificateDer<'static>] {
        &self.roots
    }

    /// Returns the certificates between leaves and roots.
    pub fn intermediates(&self) -> &[CertificateDer<'static>] {
        &self.intermediates
    }

    /// Returns the signing key as PEM, for storing a generated root across restarts. The caller must protect the file.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Returns the expiry of the CA's certificate.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// Signs a CRL (PEM) that revokes the given leaf certificates.
    pub fn revoke(
        &self,
        leaves: &[CertificateDer<'_>],
        now: SystemTime,
    ) -> Result<String, IssueError> {
        let serials = leaves
            .iter()
            .filter_map(|leaf| X509Certificate::from_der(leaf).ok())
            .map(|(_, leaf)| SerialNumber::from_slice(leaf.raw_serial()));
        let list = CertificateRevocationListParams {
            this_update: (now - NOT_BEFORE_BACKDATE).into(),
            next_update: (now + Duration::from_secs(24 * 3600)).into(),
            crl_number: random_serial(),
            issuing_distribution_point: None,
            revoked_certs: serials
                .map(|serial_number| RevokedCertParams {
                    serial_number,
                    revocation_time: now.into(),
                    reason_code: None,
                    invalidity_date: None,
                })
                .collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.issuer).map_err(IssueError::Sign)?;
        list.pem().map_err(IssueError::Sign)
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority")
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

/// Returns the public key of a certificate request, after checking that the request is signed with its private key.
fn public_key_of_request(request_pem: &str) -> Result<rcgen::PublicKey, IssueError> {
    if request_pem.len() > MAX_REQUEST_BYTES {
        return Err(IssueError::TooLarge(request_pem.len()));
    }
    let request = CertificateSigningRequestParams::from_pem(request_pem)
        .map_err(IssueError::InvalidRequest)?;
    let known = [
        &rcgen::PKCS_ECDSA_P256_SHA256,
        &rcgen::PKCS_ECDSA_P384_SHA384,
        &rcgen::PKCS_ED25519,
        &rcgen::PKCS_RSA_SHA256,
    ];
    if !known.contains(&request.public_key.algorithm()) {
        return Err(IssueError::UnsupportedKey);
    }
    Ok(request.public_key)
}

fn parse_ca_expiry(der: &CertificateDer<'_>) -> Result<SystemTime, AuthorityError> {
    let (_, cert) =
        X509Certificate::from_der(der).map_err(|source| AuthorityError::InvalidCertificates {
            file: "ca-cert.pem",
            source: ChainError::MalformedLeaf(source),
        })?;
    if !cert.is_ca() {
        return Err(AuthorityError::NotAuthority);
    }
    Ok(validity(&cert).end)
}

fn ca_params(organization: &str, role: &str, ttl: Duration, now: SystemTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, organization);
    name.push(
        DnType::CommonName,
        format!("Ambit {role} CA {:08x}", rand::rng().random::<u32>()),
    );
    params.distinguished_name = name;
    params.serial_number = Some(random_serial());
    params.not_before = (now - NOT_BEFORE_BACKDATE).into();
    params.not_after = (now + ttl).into();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.use_authority_key_identifier_extension = true;
    params
}

/// Returns a random positive serial number of 128 bits.
fn random_serial() -> SerialNumber {
    let mut bytes: [u8; 16] = rand::rng().random();
    if let Some(first) = bytes.first_mut() {
        // Positive, and without a leading zero that would shorten it.
        *first = (*first & 0x7f) | 0x40;
    }
    SerialNumber::from_slice(&bytes)
}

#[cfg(test)]
mod tests;
