//! SPIFFE trust bundles (SPIFFE Trust Domain and Bundle, section 4): root certificates of a trust domain, in the format
//! of a JWKS.

use ambit_tls::pem;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;

/// Maximum number of root certificates of one trust domain.
const MAX_ROOTS: usize = 64;

/// Reason why a text is not a valid trust bundle.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BundleError {
    #[error("the response is not a SPIFFE trust bundle")]
    InvalidJson(#[source] serde_json::Error),
    #[error("key {0} of the trust bundle has no certificate, or several")]
    InvalidCertificate(usize),
    #[error("the trust bundle has more than {MAX_ROOTS} roots")]
    TooManyRoots,
}

#[derive(Deserialize)]
struct TrustBundle {
    keys: Vec<BundleKey>,
}

#[derive(Deserialize)]
struct BundleKey {
    #[serde(default, rename = "use")]
    usage: String,
    #[serde(default)]
    x5c: Vec<String>,
}

/// Returns the root certificates of a trust bundle as PEM; empty if the trust domain has revoked all.
pub(super) fn parse_roots(text: &[u8]) -> Result<String, BundleError> {
    let bundle: TrustBundle = serde_json::from_slice(text).map_err(BundleError::InvalidJson)?;
    let all = bundle.keys.iter().enumerate();
    let roots: Vec<_> = all.filter(|(_, key)| key.usage == "x509-svid").collect();
    if roots.len() > MAX_ROOTS {
        return Err(BundleError::TooManyRoots);
    }
    let mut text = String::new();
    for (index, key) in roots {
        let [certificate] = key.x5c.as_slice() else {
            return Err(BundleError::InvalidCertificate(index));
        };
        let der = STANDARD
            .decode(certificate)
            .map_err(|_| BundleError::InvalidCertificate(index))?;
        text += &pem::encode_pem("CERTIFICATE", &der);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(keys: &str) -> Result<String, BundleError> {
        parse_roots(format!("{{\"keys\": [{keys}], \"spiffe_sequence\": 1}}").as_bytes())
    }

    #[test]
    fn bundle_roots_are_its_x509_keys() {
        let jwt = r#"{"use": "jwt-svid", "kty": "EC", "kid": "a"}"#;
        let root = r#"{"use": "x509-svid", "kty": "EC", "x5c": ["AAAA"]}"#;
        let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert_eq!(bundle(&format!("{jwt},{root}")).unwrap(), pem);
        assert_eq!(bundle(&format!("{root},{root}")).unwrap(), pem.repeat(2));
        assert_eq!(bundle(jwt).unwrap(), "");
        assert_eq!(bundle("").unwrap(), "");
    }

    #[test]
    fn invalid_bundle_is_rejected() {
        for keys in [
            r#"{"use": "x509-svid"}"#,
            r#"{"use": "x509-svid", "x5c": ["AAAA", "AAAA"]}"#,
            r#"{"use": "x509-svid", "x5c": ["?"]}"#,
            r#"{"use": 1}"#,
        ] {
            assert!(bundle(keys).is_err(), "{keys}");
        }
        for text in ["", "[]", "{}", r#"{"keys": {}}"#] {
            assert!(parse_roots(text.as_bytes()).is_err(), "{text}");
        }
        let many = [r#"{"use": "x509-svid", "x5c": ["AAAA"]}"#; MAX_ROOTS + 1];
        assert!(matches!(
            bundle(&many.join(",")),
            Err(BundleError::TooManyRoots)
        ));
    }
}
