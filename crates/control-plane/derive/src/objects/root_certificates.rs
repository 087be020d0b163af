//! Root certificates of trust domains, from MeshConfig's `caCertificates`.

use ambit_model::ArcStr;

/// Entry of MeshConfig's `caCertificates`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RootCertificates {
    /// Trust domains that the roots are for; the mesh's own one if empty.
    pub(crate) trust_domains: Vec<ArcStr>,
    pub(crate) source: RootSource,
}

/// Source of the root certificates of a trust domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RootSource {
    /// Root certificates in the MeshConfig itself, as PEM.
    Pem(ArcStr),
    /// URL of a SPIFFE trust bundle, which the control plane fetches.
    TrustBundleUrl(ArcStr),
}
