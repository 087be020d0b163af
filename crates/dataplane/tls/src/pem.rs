//! Parses and encodes PEM certificates.

use std::fmt::Write as _;

use base64::{Engine, engine::general_purpose::STANDARD};
use rustls_pki_types::{CertificateDer, pem::PemObject};

use crate::chain_error::{ChainError, MAX_CERTIFICATES};

/// Parses all certificates in a PEM text, at least one. Errors contain `index`, the position of the text in a response.
pub fn parse_certificates(
    index: usize,
    text: &str,
) -> Result<Vec<CertificateDer<'static>>, ChainError> {
    let certificates = CertificateDer::pem_slice_iter(text.as_bytes())
        .take(MAX_CERTIFICATES + 1)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|source| ChainError::Pem {
            index,
            source: Some(source),
        })?;
    match certificates.len() {
        0 => Err(ChainError::Pem {
            index,
            source: None,
        }),
        1..=MAX_CERTIFICATES => Ok(certificates),
        _ => Err(ChainError::TooLong),
    }
}

/// Encodes one DER object as PEM with this label.
pub fn encode_pem(label: &str, der: &[u8]) -> String {
    let mut text = format!("-----BEGIN {label}-----\n");
    let encoded = STANDARD.encode(der);
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, tail) = rest.split_at_checked(64).unwrap_or((rest, ""));
        text.push_str(line);
        text.push('\n');
        rest = tail;
    }
    // Writing to a string does not fail.
    let _ = writeln!(text, "-----END {label}-----");
    text
}
