//! URLs from which the control plane fetches key sets and trust bundles.

use std::time::Duration;

use ambit_model::ArcStr;

/// Source that the control plane fetches a key set or a trust bundle from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeySource {
    /// URL of the key set; for [`KeyFormat::Issuer`], URL of the issuer.
    pub url: ArcStr,
    /// Format of the document at the URL.
    pub format: KeyFormat,
    /// Timeout of an attempt to fetch the key set.
    pub timeout: Duration,
    /// Namespace of the objects that need the key set. `None` for the root namespace, whose objects may name any
    /// address.
    pub namespace: Option<ArcStr>,
}

/// Format of the document at a key source's URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeyFormat {
    /// JWKS (RFC 7517): public keys by which waypoints verify the signatures of tokens.
    KeySet,
    /// URL of a token issuer, whose discovery document (OpenID Connect Discovery 1.0) has the URL of its JWKS.
    Issuer,
    /// SPIFFE trust bundle (SPIFFE Trust Domain and Bundle, section 4): root certificates of a trust domain, stored as
    /// PEM.
    TrustBundle,
}
