//! Root certificates by which servers of the control plane are verified.

use std::{fs, io, path::PathBuf};

use rustls::RootCertStore;
use rustls_pki_types::{CertificateDer, pem, pem::PemObject};

/// Paths of the system's trust store; the first that exists is used. `SSL_CERT_FILE` is ignored: a proxy reads only its
/// documented environment variables.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
];

/// Source of root certificates (`XDS_ROOT_CA`, `CA_ROOT_CA`), which is read again for every connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootCa {
    /// Trust store of the operating system.
    System,
    /// PEM file at this path.
    File(PathBuf),
    /// Root certificates in PEM.
    Pem(String),
}

/// Reason why root certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RootCaError {
    /// The file cannot be read.
    #[error("cannot read root certificates from {}", path.display())]
    ReadFile {
        /// Path of the file.
        path: PathBuf,
        /// Cause of the error.
        #[source]
        source: io::Error,
    },
    /// The roots are not PEM.
    #[error("root certificates of {origin} are not PEM")]
    InvalidPem {
        /// Path of the file with the certificates, or `the setting`.
        origin: String,
        /// Cause of the error.
        #[source]
        source: pem::Error,
    },
    /// A root certificate is malformed.
    #[error("a root certificate of {origin} is malformed")]
    Malformed {
        /// Path of the file with the certificates, or `the setting`.
        origin: String,
        /// Cause of the error.
        #[source]
        source: rustls::Error,
    },
    /// The source contains no certificate.
    #[error("{origin} holds no root certificate")]
    Empty {
        /// Path of the file with the certificates, or `the setting`.
        origin: String,
    },
    /// The system has no trust store at a known path.
    #[error("this system keeps its root certificates in none of {}", SYSTEM_ROOTS.join(", "))]
    NoSystemRoots,
}

impl RootCa {
    /// Parses a setting: `SYSTEM`, PEM text, or otherwise a path.
    pub fn from_setting(text: &str) -> Self {
        if text == "SYSTEM" {
            Self::System
        } else if text.contains("-----BEGIN") {
            Self::Pem(text.to_owned())
        } else {
            Self::File(text.into())
        }
    }

    /// Reads and parses the root certificates.
    pub fn load(&self) -> Result<RootCertStore, RootCaError> {
        match self {
            Self::Pem(text) => parse(text.as_bytes(), "the setting", false),
            Self::File(path) => {
                let text = fs::read(path).map_err(|source| RootCaError::ReadFile {
                    path: path.clone(),
                    source,
                })?;
                parse(&text, &path.display().to_string(), false)
            }
            Self::System => {
                let (path, text) = SYSTEM_ROOTS
                    .iter()
                    .find_map(|path| Some((path, fs::read(path).ok()?)))
                    .ok_or(RootCaError::NoSystemRoots)?;
                parse(&text, path, true)
            }
        }
    }
}

/// Parses root certificates in PEM. Unusable certificates are errors, unless `lenient` skips them: a system's trust
/// store may contain some.
fn parse(text: &[u8], origin: &str, lenient: bool) -> Result<RootCertStore, RootCaError> {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(text) {
        let certificate = certificate.map_err(|source| RootCaError::InvalidPem {
            origin: origin.to_owned(),
            source,
        })?;
        match store.add(certificate) {
            Err(source) if !lenient => {
                return Err(RootCaError::Malformed {
                    origin: origin.to_owned(),
                    source,
                });
            }
            _ => {}
        }
    }
    if store.is_empty() {
        return Err(RootCaError::Empty {
            origin: origin.to_owned(),
        });
    }
    Ok(store)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_a_setting_are_distinguished() {
        assert_eq!(RootCa::from_setting("SYSTEM"), RootCa::System);
        assert_eq!(
            RootCa::from_setting("/a/b.pem"),
            RootCa::File("/a/b.pem".into())
        );
        let pem = "-----BEGIN CERTIFICATE-----\n";
        assert_eq!(RootCa::from_setting(pem), RootCa::Pem(pem.to_owned()));
    }

    #[test]
    fn unusable_roots_are_named() {
        let error = RootCa::File("/nowhere/root.pem".into()).load().unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot read root certificates from /nowhere/root.pem"
        );
        let error = RootCa::Pem("no certificate".to_owned()).load().unwrap_err();
        assert_eq!(error.to_string(), "the setting holds no root certificate");
        let bad = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(matches!(
            RootCa::Pem(bad.to_owned()).load(),
            Err(RootCaError::Malformed { .. })
        ));
    }
}
