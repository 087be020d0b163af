//! Errors of pulling images.

use ambit_fetch::FetchError;

use crate::bytes::MAX_MODULE_BYTES;

/// Error of pulling an image with a module.
#[derive(Debug, thiserror::Error)]
pub enum OciError {
    /// Text that is not the name of an image.
    #[error("{0:?} names no image")]
    Name(String),
    /// Failed request to the registry.
    #[error(transparent)]
    Http(#[from] FetchError),
    /// Authentication scheme that is not supported.
    #[error("the registry requires an authentication scheme that is not supported: {0:?}")]
    Challenge(String),
    /// Registry for which the pull secret has no credentials.
    #[error("the registry requires credentials, and spec.imagePullSecret has none for it")]
    NoCredentials,
    /// Token server that would receive the password in plaintext.
    #[error("the registry requires credentials to be sent to {0}, in plaintext")]
    Realm(String),
    /// Response of a token server without a token.
    #[error("the registry gives no token")]
    Token,
    /// Pull secret that cannot be read.
    #[error(
        "the pull secret has no user and password that can be used for the registry (auth, or username and password)"
    )]
    Secret,
    /// Manifest that cannot be parsed.
    #[error("the manifest cannot be read")]
    Manifest(#[source] serde_json::Error),
    /// Manifest that does not have the requested digest.
    #[error("the manifest is another than {0}")]
    OtherManifest(String),
    /// Layer that does not have its digest.
    #[error("the content of the layer {0} does not match its digest")]
    OtherLayer(String),
    /// Image without a module.
    #[error("the image has no layer with a module")]
    NoModule,
    /// Layer that cannot be unpacked, or is too large.
    #[error("the layer cannot be unpacked, or has more than {MAX_MODULE_BYTES} bytes")]
    Layer,
}
