//! TLS to servers whose certificates chain to the system's trust store.

use std::sync::Arc;

use parking_lot::Mutex;
use rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};
use tokio_rustls::TlsConnector;

use crate::error::FetchError;

/// TLS configuration, created on first use. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct LazyTlsConfig(Arc<Mutex<Option<Arc<ClientConfig>>>>);

impl LazyTlsConfig {
    /// Returns a TLS connector.
    ///
    /// # Errors
    ///
    /// When the system has no trust store; the next call reads it again.
    pub(super) fn connector(&self) -> Result<TlsConnector, FetchError> {
        let mut config = self.0.lock();
        let config = match &*config {
            Some(config) => config.clone(),
            None => config.insert(Arc::new(with_system_roots()?)).clone(),
        };
        Ok(TlsConnector::from(config))
    }
}

fn with_system_roots() -> Result<ClientConfig, FetchError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "a certificate authority of the system cannot be read");
    }
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(FetchError::NoTrustStore);
    }
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|_| FetchError::NoTrustStore)?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
