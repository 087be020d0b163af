//! Limits of the certificate store.

use std::time::Duration;

/// Limits and retry delays of [`crate::Certificates`].
#[derive(Clone, Copy, Debug)]
pub struct CertificatesOptions {
    /// Maximum fetches in flight.
    pub max_parallel_fetches: usize,
    /// Initial backoff of an identity after a failed fetch.
    pub backoff_initial: Duration,
    /// Maximum backoff of an identity after failed fetches.
    pub backoff_cap: Duration,
    /// Delay before the first probe of an unreachable CA, for which one identity's fetch is used.
    pub probe_initial: Duration,
    /// Maximum delay between probes of an unreachable CA, and thus the time after its return until
    /// all identities have certificates.
    pub probe_cap: Duration,
}

impl Default for CertificatesOptions {
    fn default() -> Self {
        Self {
            max_parallel_fetches: 8,
            backoff_initial: Duration::from_secs(1),
            backoff_cap: Duration::from_secs(30),
            probe_initial: Duration::from_millis(250),
            probe_cap: Duration::from_secs(1),
        }
    }
}
