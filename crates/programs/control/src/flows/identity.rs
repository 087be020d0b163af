//! The control plane's own certificate, under which proxies know it.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use ambit_issuer::IssueError;
use ambit_model::Identity;
use ambit_tls::{ChainError, TlsSettings, WorkloadCert};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::ca::Trust;

/// Life of a certificate.
const TTL: Duration = Duration::from_secs(24 * 3600);

/// Error of creating a certificate.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// Refusal by the certificate authority.
    #[error("cannot issue the control plane's own certificate")]
    Issue(#[from] IssueError),
    /// The certificate cannot be used.
    #[error("cannot use the control plane's own certificate")]
    Chain(#[from] ChainError),
}

/// The identity of the control plane, with its certificate of the moment.
#[derive(Debug)]
pub struct OwnIdentity {
    identity: Identity,
    trust: watch::Receiver<Arc<Trust>>,
    current: Mutex<Option<(Arc<Trust>, Arc<WorkloadCert>)>>,
}

impl OwnIdentity {
    /// An identity whose certificates `trust` issues.
    pub fn new(identity: Identity, trust: watch::Receiver<Arc<Trust>>) -> Self {
        Self {
            identity,
            trust,
            current: Mutex::default(),
        }
    }

    /// A valid certificate: the last one until half of its life, unless the authority is another.
    ///
    /// # Errors
    /// If none can be issued.
    pub fn certificate(&self) -> Result<Arc<WorkloadCert>, IdentityError> {
        let now = SystemTime::now();
        let trust = Arc::clone(&self.trust.borrow());
        let mut current = self.current.lock();
        if let Some((by, certificate)) = &*current
            && Arc::ptr_eq(by, &trust)
            && now < certificate.renew_at()
        {
            return Ok(certificate.clone());
        }
        let authority = &trust.authority;
        let (chain, key) = authority.issue_workload(&self.identity, TTL, now)?;
        let roots = authority.roots().to_vec();
        let certificate = WorkloadCert::new(&TlsSettings::default(), chain, key, roots)?;
        let certificate = Arc::new(certificate);
        *current = Some((trust.clone(), certificate.clone()));
        Ok(certificate)
    }
}
