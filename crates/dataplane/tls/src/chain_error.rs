//! Errors of parsing and validating certificate chains.

use ambit_model::Identity;
use rustls_pki_types::pem;

/// Maximum certificates in one response of the CSR API, which bounds memory.
pub(crate) const MAX_CERTIFICATES: usize = 256;

/// Reason why a certificate chain cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// The response of the CA contains no certificate.
    #[error("the certificate chain is empty")]
    Empty,
    /// The response has only the leaf, and no root certificate.
    #[error("the certificate chain has {0} entry, so it has no root; expected leaf and root")]
    NoRoot(usize),
    /// An entry of the response is not PEM, or contains no certificate.
    #[error("entry {index} of the certificate chain is not a PEM certificate")]
    Pem {
        /// Index of the entry, counted from 0.
        index: usize,
        /// Cause of the error; `None` if the entry contains no certificate.
        #[source]
        source: Option<pem::Error>,
    },
    /// The bytes are not a concatenation of DER certificates.
    #[error("certificate {index} of the sequence is not a certificate in DER")]
    Der {
        /// Index of the malformed certificate, counted from 0.
        index: usize,
        /// Error of parsing the certificate.
        #[source]
        source: x509_parser::nom::Err<x509_parser::error::X509Error>,
    },
    /// The response's first entry contains this many certificates instead of the leaf alone.
    #[error("entry 0 of the certificate chain holds {0} certificates, expected the leaf alone")]
    MultipleLeaves(usize),
    /// The response has more certificates than [`MAX_CERTIFICATES`].
    #[error("the certificate chain holds more than {MAX_CERTIFICATES} certificates")]
    TooLong,
    /// The leaf is not a valid X.509 certificate.
    #[error("the leaf certificate is malformed")]
    MalformedLeaf(#[source] x509_parser::nom::Err<x509_parser::error::X509Error>),
    /// The leaf has no SPIFFE ID of a workload as SAN.
    #[error("the leaf certificate has no SPIFFE id of the form spiffe://…/ns/…/sa/…")]
    NoIdentity,
    /// The leaf certifies another identity than the requested one.
    #[error("the certificate is for {got}, requested was {expected}")]
    IdentityMismatch {
        /// Identity in the certificate.
        got: Box<Identity>,
        /// Identity that was requested.
        expected: Box<Identity>,
    },
    /// A root certificate is malformed.
    #[error("a root certificate is malformed")]
    InvalidRoot(#[source] rustls::Error),
    /// The chain does not lead to the roots, or is not currently valid.
    #[error("the certificate chain does not verify against its own roots")]
    Unverified(#[source] rustls::Error),
    /// The private key does not match the leaf.
    #[error("the private key does not fit the certificate")]
    InvalidKey(#[source] rustls::Error),
}
