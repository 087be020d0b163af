//! Certificate signing request: a new key, and the PKCS#10 request for its certificate.

use ambit_model::Identity;
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, SanType};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// Error of building a certificate signing request.
#[derive(Debug, thiserror::Error)]
#[error("cannot make a certificate request for {identity}")]
pub struct CsrError {
    /// Identity to be certified.
    pub identity: Box<Identity>,
    /// Error of the cryptographic library.
    #[source]
    pub source: rcgen::Error,
}

/// Certificate signing request with its private key.
#[derive(Debug)]
pub struct CertificateRequest {
    /// PEM of the PKCS#10 request.
    pub pem: String,
    /// Private key of the requested certificate, in memory only.
    pub key: PrivateKeyDer<'static>,
}

impl CertificateRequest {
    /// Creates a request with a new P-256 key, an empty subject and the SPIFFE ID as the only SAN.
    pub fn new(identity: &Identity) -> Result<Self, CsrError> {
        Self::try_new(identity).map_err(|source| CsrError {
            identity: Box::new(identity.clone()),
            source,
        })
    }

    fn try_new(identity: &Identity) -> Result<Self, rcgen::Error> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = vec![SanType::URI(identity.to_string().try_into()?)];
        let pem = params.serialize_request(&key)?.pem()?;
        // Moves the only copy of the key's bytes.
        Ok(Self {
            pem,
            key: PrivatePkcs8KeyDer::from(key).into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use x509_parser::prelude::{FromDer, GeneralName, ParsedExtension, X509CertificationRequest};

    use super::*;

    #[test]
    fn a_request_has_one_name_and_an_empty_subject() {
        let identity = Identity::new("td", "ns", "sa");
        let request = CertificateRequest::new(&identity).unwrap();
        let (_, pem) = x509_parser::pem::parse_x509_pem(request.pem.as_bytes()).unwrap();
        assert_eq!(pem.label, "CERTIFICATE REQUEST");
        let (_, csr) = X509CertificationRequest::from_der(&pem.contents).unwrap();
        assert_eq!(csr.certification_request_info.subject.iter().count(), 0);
        let names: Vec<_> = csr
            .requested_extensions()
            .unwrap()
            .filter_map(|extension| match extension {
                ParsedExtension::SubjectAlternativeName(names) => Some(&names.general_names),
                _ => None,
            })
            .flatten()
            .collect();
        assert_eq!(names, [&GeneralName::URI("spiffe://td/ns/ns/sa/sa")]);
    }

    #[test]
    fn every_request_has_its_own_key() {
        let identity = Identity::new("td", "ns", "sa");
        let key = || {
            CertificateRequest::new(&identity)
                .unwrap()
                .key
                .secret_der()
                .to_vec()
        };
        assert_ne!(key(), key());
    }
}
