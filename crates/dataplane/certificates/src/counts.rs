//! Numbers of identities by the state of their certificates.

use std::time::SystemTime;

/// Numbers of a process's identities by the state of their certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CertificateCounts {
    /// Identities whose certificate is valid and not yet due for renewal.
    pub available: i64,
    /// Identities whose certificate is valid but past the time of its renewal.
    pub overdue: i64,
    /// Identities whose first certificate is being fetched.
    pub initializing: i64,
    /// Identities without a valid certificate: the CA issued none, or the last one has expired.
    pub unavailable: i64,
    /// Earliest expiry of all certificates.
    pub earliest_expiry: Option<SystemTime>,
}
