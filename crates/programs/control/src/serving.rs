//! Serving certificate of the control plane, which its own CA issues, and which is renewed at half its lifetime.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use ambit_ca::CaTrust;
use ambit_issuer::IssueError;
use ambit_rt::DrainWatcher;
use ambit_tls::TlsSettings;
use parking_lot::RwLock;
use rustls::ServerConfig;
use tokio::sync::watch;

/// Lifetime of a serving certificate.
const CERTIFICATE_TTL: Duration = Duration::from_secs(24 * 3600);
/// Delay of a retry after a certificate could not be issued.
const RETRY_DELAY: Duration = Duration::from_secs(30);

/// Reason why no serving certificate could be created.
#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    /// The CA refuses to issue the certificate.
    #[error("cannot issue the serving certificate")]
    Issue(#[from] IssueError),
    /// The TLS library rejects the certificate.
    #[error("cannot use the serving certificate")]
    Tls(#[from] rustls::Error),
}

/// Current TLS configuration with the serving certificate.
#[derive(Clone, Debug)]
pub struct ServingCertificate(Arc<RwLock<Arc<ServerConfig>>>);

impl ServingCertificate {
    /// Issues the first certificate for `names`. Renews it until the drain, and at once when the CA changes.
    pub fn start(
        mut trust: watch::Receiver<Arc<CaTrust>>,
        names: Vec<String>,
        mut drain: DrainWatcher,
    ) -> Result<Self, ServingError> {
        let issue = move |trust: &CaTrust| -> Result<Arc<ServerConfig>, ServingError> {
            let authority = &trust.authority;
            let (chain, key) =
                authority.issue_serving(&names, CERTIFICATE_TTL, SystemTime::now())?;
            Ok(ambit_grpc_listener::server_config(
                &TlsSettings::default(),
                chain,
                key,
            )?)
        };
        let first = Arc::clone(&trust.borrow_and_update());
        let serving = Self(Arc::new(RwLock::new(issue(&first)?)));
        let renewed = serving.clone();
        ambit_rt::spawn("serving certificate", async move {
            let mut wait = CERTIFICATE_TTL / 2;
            loop {
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    Ok(()) = trust.changed() => {}
                    _ = drain.wait_until_started() => return,
                }
                let present = Arc::clone(&trust.borrow_and_update());
                wait = match issue(&present) {
                    Ok(config) => {
                        *renewed.0.write() = config;
                        CERTIFICATE_TTL / 2
                    }
                    Err(error) => {
                        tracing::error!(%error, "the serving certificate is not renewed");
                        RETRY_DELAY
                    }
                };
            }
        });
        Ok(serving)
    }

    /// Returns the TLS configuration for the next gRPC connection.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.read())
    }

    /// Returns the TLS configuration for the next HTTP/1.1 connection.
    pub fn http1_config(&self) -> Arc<ServerConfig> {
        let mut config = ServerConfig::clone(&self.0.read());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Arc::new(config)
    }
}
