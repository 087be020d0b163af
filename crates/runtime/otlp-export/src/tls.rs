//! TLS to collectors, for endpoints that begin with `https`.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};
use rustls_pki_types::{CertificateDer, pem, pem::PemObject as _};

/// Source of the root certificates that verify the collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TlsRoots {
    /// System trust store, at OpenSSL's locations.
    System,
    /// PEM file whose path an environment variable sets.
    File { variable: String, path: String },
}

/// Reason why TLS to a collector cannot be configured.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file of root certificates cannot be read.
    #[error("cannot read the certificate authorities of {variable}, {path}")]
    Read {
        /// Name of the environment variable that sets the path.
        variable: String,
        /// Path of the file.
        path: String,
        /// Cause of the error.
        #[source]
        source: pem::Error,
    },
    /// The source contains no root certificate.
    #[error("there is no usable certificate authority in {0}")]
    NoRoots(String),
    /// The TLS library rejects the configuration.
    #[error("TLS is not available")]
    Settings(#[from] rustls::Error),
}

/// Builds the TLS configuration for a collector with one ALPN protocol.
pub(crate) fn client_config(
    roots: &TlsRoots,
    protocol: &[u8],
) -> Result<Arc<ClientConfig>, TlsError> {
    let mut store = RootCertStore::empty();
    let source = match roots {
        TlsRoots::System => {
            // Unreadable roots are not trusted.
            let found = rustls_native_certs::load_native_certs();
            store.add_parsable_certificates(found.certs);
            "the system; set OTEL_EXPORTER_OTLP_CERTIFICATE".to_owned()
        }
        TlsRoots::File { variable, path } => {
            let read = || {
                let certificates = CertificateDer::pem_file_iter(path)?;
                certificates.collect::<Result<Vec<_>, _>>()
            };
            let found = read().map_err(|source| TlsError::Read {
                variable: variable.clone(),
                path: path.clone(),
                source,
            })?;
            store.add_parsable_certificates(found);
            path.clone()
        }
    };
    if store.is_empty() {
        return Err(TlsError::NoRoots(source));
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions()?;
    let mut config = builder.with_root_certificates(store).with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(Arc::new(config))
}
