//! Reasons why a connection ended: a small set of values for metrics, access logs and callers.

use std::fmt;

/// Response flags of a connection (Istio's node proxy contract).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reason {
    /// No failure happened.
    #[default]
    None,
    /// Authorization denied the connection, at its start or after a policy changed.
    Deny,
    /// Failed TLS handshake.
    TlsFailure,
    /// HTTP/2 error of the tunnel's connection.
    H2Failure,
    /// Timeout of connecting to the HBONE port, which a NetworkPolicy may block.
    NetworkPolicy,
    /// No certificate available for the workload's identity.
    IdentityError,
    /// Revoked certificate of the peer.
    CertRevoked,
    /// Connection failure for another reason.
    Connect,
}

impl Reason {
    /// Returns the text for metrics and logs.
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
