//! Errors of certificate chains.

use ambit_model::Identity;
use rustls_pki_types::pem;

/// Maximum certificates in one response; more would exhaust memory.
pub(crate) const MAX_CERTIFICATES: usize = 256;

/// Why a certificate chain cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// The chain has no entry.
    #[error("the certificate chain is empty")]
    Empty,
    /// The chain has the leaf alone.
    #[error("the certificate chain has {0} entry, so it has no root; expected leaf and root")]
    NoRoot(usize),
    /// An entry is not PEM, or holds no certificate.
    #[error("entry {index} of the certificate chain is not a PEM certificate")]
    Pem {
        /// Counted from 0.
        index: usize,
        /// The cause, unless the entry is empty.
        #[source]
        source: Option<pem::Error>,
    },
    /// Bytes that are no sequence of DER certificates.
    #[error("certificate {index} of the sequence is not a certificate in DER")]
    Der {
        /// Counted from 0.
        index: usize,
        /// Cause of the error.
        #[source]
        source: x509_parser::nom::Err<x509_parser::error::X509Error>,
    },
    /// The leaf's entry holds several certificates.
    #[error("entry 0 of the certificate chain holds {0} certificates, expected the leaf alone")]
    SeveralLeaves(usize),
    /// The response has more certificates than [`MAX_CERTIFICATES`].
    #[error("the certificate chain holds more than {MAX_CERTIFICATES} certificates")]
    TooLong,
    /// The leaf is not X.509.
    #[error("the leaf certificate is malformed")]
    MalformedLeaf(#[source] x509_parser::nom::Err<x509_parser::error::X509Error>),
    /// The leaf has no workload identity.
    #[error("the leaf certificate has no SPIFFE id of the form spiffe://…/ns/…/sa/…")]
    NoIdentity,
    /// The leaf is for another workload.
    #[error("the certificate is for {got}, requested was {expected}")]
    OtherIdentity {
        /// Identity in the certificate.
        got: Box<Identity>,
        /// Identity as requested.
        expected: Box<Identity>,
    },
    /// A root is malformed.
    #[error("a root certificate is malformed")]
    Root(#[source] rustls::Error),
    /// The chain does not lead to the roots, or is not valid now.
    #[error("the certificate chain does not verify against its own roots")]
    Unverified(#[source] rustls::Error),
    /// The key does not match the leaf.
    #[error("the private key does not fit the certificate")]
    Key(#[source] rustls::Error),
}
