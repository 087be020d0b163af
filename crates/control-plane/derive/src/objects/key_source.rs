//! Addresses of key sets.

use std::time::Duration;

use ambit_model::ArcStr;

/// Source of a key set.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeySource {
    /// Address of the key set; of the issuer for [`KeyForm::Issuer`].
    pub url: ArcStr,
    /// Form of the document at the address.
    pub form: KeyForm,
    /// Timeout of an attempt to fetch the key set.
    pub timeout: Duration,
    /// The namespace for whose objects it is fetched. `None`: the root namespace, whose objects may name any address.
    pub namespace: Option<ArcStr>,
}

/// Form of the document at the address of a key set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeyForm {
    /// Keys that sign tokens (JWKS).
    KeySet,
    /// An issuer of tokens, whose discovery document (OpenID Connect Discovery 1.0) has the address of its keys.
    Issuer,
    /// The roots of a trust domain (SPIFFE Trust Domain and Bundle, section 4): the state has them as PEM.
    TrustBundle,
}
