//! Reasons why a connection failed, as a small set of values for metrics, access logs and callers.

use std::fmt;

/// Reason why a connection failed; its text is the response flag in metrics and access logs of Istio's ztunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FailureReason {
    /// The connection did not fail.
    #[default]
    None,
    /// Authorization denied the connection, at its start or after a policy changed.
    Deny,
    /// The TLS handshake failed.
    TlsFailure,
    /// The tunnel's HTTP/2 connection failed.
    H2Failure,
    /// Connecting to the HBONE port timed out, perhaps because a NetworkPolicy blocks it.
    NetworkPolicy,
    /// No certificate is available for the workload's identity.
    IdentityError,
    /// The peer's certificate is revoked.
    CertRevoked,
    /// The connection failed for another reason.
    Connect,
}

impl FailureReason {
    /// Returns the response flag for metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "-",
            Self::Deny => "DENY",
            Self::TlsFailure => "TLS_FAILURE",
            Self::H2Failure => "H2_HANDSHAKE_FAILURE",
            Self::NetworkPolicy => "NETWORK_POLICY",
            Self::IdentityError => "IDENTITY_ERROR",
            Self::CertRevoked => "CERT_REVOKED",
            Self::Connect => "CONNECT",
        }
    }
}

impl fmt::Display for FailureReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
