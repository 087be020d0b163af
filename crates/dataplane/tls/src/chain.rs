//! Parses certificate chains: PEM in responses of the CSR API, and the fields of a leaf.

use std::{
    ops::Range,
    time::{Duration, SystemTime},
};

use ambit_model::Identity;
use rustls_pki_types::CertificateDer;
use x509_parser::{
    certificate::X509Certificate,
    prelude::{FromDer, GeneralName},
    time::ASN1Time,
};

use crate::{
    chain_error::{ChainError, MAX_CERTIFICATES},
    pem::parse_certificates,
    verify::leaf_identity,
};

/// Splits a concatenation of DER certificates.
pub fn split_concatenated_der(der: &[u8]) -> Result<Vec<CertificateDer<'static>>, ChainError> {
    let mut certificates = Vec::new();
    let mut rest = der;
    while !rest.is_empty() {
        if certificates.len() == MAX_CERTIFICATES {
            return Err(ChainError::TooLong);
        }
        let index = certificates.len();
        let (tail, _) =
            X509Certificate::from_der(rest).map_err(|source| ChainError::Der { index, source })?;
        let (one, _) = rest.split_at(rest.len() - tail.len());
        certificates.push(CertificateDer::from(one.to_vec()));
        rest = tail;
    }
    match certificates.is_empty() {
        true => Err(ChainError::Empty),
        false => Ok(certificates),
    }
}

/// Counts the URI SANs of a leaf.
pub fn count_uri_names(leaf: &CertificateDer<'_>) -> Result<usize, ChainError> {
    let (_, leaf) = X509Certificate::from_der(leaf).map_err(ChainError::MalformedLeaf)?;
    let names = leaf.subject_alternative_name();
    let names = names.ok().flatten().map(|names| &names.value.general_names);
    let names = names.into_iter().flatten();
    Ok(names
        .filter(|name| matches!(name, GeneralName::URI(_)))
        .count())
}

/// Parsed fields of a leaf certificate.
pub(crate) struct LeafCertificate {
    pub(crate) identity: Identity,
    pub(crate) not_before: SystemTime,
    pub(crate) not_after: SystemTime,
}

impl LeafCertificate {
    pub(crate) fn parse(der: &CertificateDer<'_>) -> Result<Self, ChainError> {
        let (_, leaf) = X509Certificate::from_der(der).map_err(ChainError::MalformedLeaf)?;
        let validity = validity(&leaf);
        Ok(Self {
            identity: leaf_identity(der).ok_or(ChainError::NoIdentity)?,
            not_before: validity.start,
            not_after: validity.end,
        })
    }
}

/// Returns the validity period of a certificate; times before 1970 count as 1970.
pub fn validity(certificate: &X509Certificate<'_>) -> Range<SystemTime> {
    let validity = certificate.validity();
    system_time(validity.not_before)..system_time(validity.not_after)
}

fn system_time(time: ASN1Time) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(time.timestamp()).unwrap_or(0))
}

/// Splits a response of the CSR API into the chain to present (leaf first) and the roots.
pub(crate) fn split_response(
    response: &[String],
) -> Result<(Vec<CertificateDer<'static>>, Vec<CertificateDer<'static>>), ChainError> {
    let (leaf, rest) = response.split_first().ok_or(ChainError::Empty)?;
    let (roots, intermediates) = rest
        .split_last()
        .ok_or(ChainError::NoRoot(response.len()))?;
    let mut chain = parse_certificates(0, leaf)?;
    if chain.len() > 1 {
        return Err(ChainError::MultipleLeaves(chain.len()));
    }
    for (index, entry) in intermediates.iter().enumerate() {
        chain.extend(parse_certificates(index + 1, entry)?);
        if chain.len() > MAX_CERTIFICATES {
            return Err(ChainError::TooLong);
        }
    }
    Ok((chain, parse_certificates(response.len() - 1, roots)?))
}
