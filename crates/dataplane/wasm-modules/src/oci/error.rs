//! Errors of pulling an image.

use ambit_fetch::FetchError;

use crate::bytes::MAX_MODULE_BYTES;

/// Error of pulling an image with a module.
#[derive(Debug, thiserror::Error)]
pub enum OciError {
    /// The text is not a valid image name.
    #[error("{0:?} names no image")]
    InvalidImageName(String),
    /// The request to the registry failed.
    #[error(transparent)]
    Http(#[from] FetchError),
    /// The registry demands an unsupported authentication scheme.
    #[error("the registry requires an authentication scheme that is not supported: {0:?}")]
    UnsupportedChallenge(String),
    /// The registry demands authentication, and the pull secret has no credentials for it.
    #[error("the registry requires credentials, and spec.imagePullSecret has none for it")]
    NoCredentials,
    /// The token server would receive the password in plaintext.
    #[error("the registry requires credentials to be sent to {0}, in plaintext")]
    ForbiddenRealm(String),
    /// The token server's response contains no token.
    #[error("the registry gives no token")]
    NoToken,
    /// The pull secret has no usable user and password.
    #[error(
        "the pull secret has no user and password that can be used for the registry (auth, or username and password)"
    )]
    InvalidPullSecret,
    /// The manifest cannot be parsed.
    #[error("the manifest cannot be read")]
    InvalidManifest(#[source] serde_json::Error),
    /// The manifest does not have the requested digest.
    #[error("the manifest is another than {0}")]
    ManifestDigestMismatch(String),
    /// The layer does not have the digest in the manifest.
    #[error("the content of the layer {0} does not match its digest")]
    LayerDigestMismatch(String),
    /// The image contains no module.
    #[error("the image has no layer with a module")]
    NoModule,
    /// The layer cannot be unpacked, or is too large.
    #[error("the layer cannot be unpacked, or has more than {MAX_MODULE_BYTES} bytes")]
    InvalidLayer,
}
