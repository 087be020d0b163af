//! JSON of certificates in `/config_dump`, in the format that `istioctl ztunnel-config` reads.

use std::time::{Duration, SystemTime};

use ambit_model::Identity;
use ambit_tls::{WorkloadCert, pem, validity};
use base64::{Engine, engine::general_purpose::STANDARD};
use rustls_pki_types::CertificateDer;
use serde::Serialize;
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

/// Certificate state of one identity in `/config_dump`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateDump {
    /// SPIFFE ID of the identity.
    pub identity: String,
    /// State of the certificate: `Initializing`, `Available`, or `Unavailable:` with the error.
    pub state: String,
    /// Certificate chain: leaf and intermediates.
    pub cert_chain: Vec<CertificateEntry>,
    /// Root certificates that come with the chain.
    pub root_certs: Vec<CertificateEntry>,
}

/// One certificate of a chain in `/config_dump`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateEntry {
    /// PEM text of the certificate, encoded as base64.
    pub pem: String,
    /// Serial number in decimal.
    pub serial_number: String,
    /// Start of the validity, in RFC 3339 format.
    pub valid_from: String,
    /// End of the validity, in RFC 3339 format.
    pub expiration_time: String,
}

impl CertificateDump {
    /// Builds the dump entry of an identity, with its certificate if it has one.
    pub fn new(identity: &Identity, state: String, cert: Option<&WorkloadCert>) -> Self {
        let entries = |ders: &[CertificateDer<'static>]| {
            ders.iter()
                .filter_map(|der| CertificateEntry::from_der(der))
                .collect()
        };
        Self {
            identity: identity.to_string(),
            state,
            cert_chain: cert.map(|cert| entries(cert.chain())).unwrap_or_default(),
            root_certs: cert.map(|cert| entries(cert.roots())).unwrap_or_default(),
        }
    }
}

impl CertificateEntry {
    fn from_der(der: &[u8]) -> Option<Self> {
        let (_, cert) = X509Certificate::from_der(der).ok()?;
        let validity = validity(&cert);
        Some(Self {
            pem: STANDARD.encode(pem::encode_pem("CERTIFICATE", der)),
            serial_number: cert.tbs_certificate.serial.to_string(),
            valid_from: rfc3339(validity.start),
            expiration_time: rfc3339(validity.end),
        })
    }
}

/// Formats a time as `2026-11-21T04:06:07Z`.
fn rfc3339(time: SystemTime) -> String {
    let seconds = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs();
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Howard Hinnant's civil_from_days, for days since 1970-01-01; years start in March.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3_600, rest % 3_600 / 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_rfc3339() {
        let at = |seconds| rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_795_234_567), "2026-11-21T04:16:07Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }
}
