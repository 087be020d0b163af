//! Root certificates of trust domains in MeshConfig.

use ambit_model::ArcStr;

/// Roots of trust domains, as MeshConfig names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RootCertificates {
    /// Trust domains of the roots; the mesh's own one, if there are none.
    pub(crate) trust_domains: Vec<ArcStr>,
    pub(crate) source: RootSource,
}

/// Source of root certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RootSource {
    /// Certificates as PEM.
    Pem(ArcStr),
    /// Address of a SPIFFE trust bundle.
    Bundle(ArcStr),
}
