//! Why a connection ended: a small set of values, for metrics, the access log and callers.

use std::fmt;

/// The `response_flags` of a connection (Istio's node proxy contract).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reason {
    /// No failure happened.
    #[default]
    None,
    /// Denied by authorization, at its start or later.
    Deny,
    /// The TLS handshake failed.
    TlsFailure,
    /// HTTP/2 failed on the tunnel.
    H2Failure,
    /// The HBONE port did not answer: a NetworkPolicy may block it.
    NetworkPolicy,
    /// No certificate for an identity.
    IdentityError,
    /// The peer's certificate is revoked.
    CertRevoked,
    /// Connecting failed for another reason.
    Connect,
}

impl Reason {
    /// The text in metrics and logs.
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

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
