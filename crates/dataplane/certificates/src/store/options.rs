//! Limits of the certificate store.

use std::time::Duration;

/// Fetch limits and retry delays of [`crate::Certificates`].
#[derive(Clone, Copy, Debug)]
pub struct CertificatesOptions {
    /// Maximum number of fetches in flight at once.
    pub max_parallel_fetches: usize,
    /// Initial backoff after an identity's fetch has failed.
    pub backoff_initial: Duration,
    /// Maximum backoff after repeated failures to fetch an identity's certificate.
    pub backoff_cap: Duration,
    /// Delay before the first probe of an unreachable CA. A probe is a fetch for one of the waiting identities.
    pub probe_initial: Duration,
    /// Maximum delay between probes of an unreachable CA, and thus the maximum time from its recovery to the next
    /// fetches.
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
