//! Counts of identities by the state of their certificates.

use std::time::SystemTime;

/// Identities of a process by the state of their certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CertificateCounts {
    /// Identities with a certificate that need not be renewed yet.
    pub available: i64,
    /// Identities with a certificate that is still valid but past the time of its renewal.
    pub overdue: i64,
    /// Identities whose first certificate is being fetched.
    pub initializing: i64,
    /// Identities without a valid certificate: the CA gave none, or the last one has expired.
    pub unavailable: i64,
    /// The earliest end of a certificate's validity.
    pub earliest_expiry: Option<SystemTime>,
}
