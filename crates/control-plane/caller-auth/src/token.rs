//! Authentication by service account tokens.
//!
//! Tokens are Kubernetes' bound tokens: JWTs with the service account as subject and the pod among
//! the claims. [`KeyFileAuthenticator`] verifies them with public keys from a file; [`TokenReviewer`] queries the
//! Kubernetes API. Both validate claims as strictly as waypoints do for the tokens of requests
//! (`ambit_jwt`).

mod reviewer;
mod reviews;
mod unverified;

use std::{
    fmt,
    future::Future,
    net::IpAddr,
    path::Path,
    pin::Pin,
    time::{Duration, SystemTime},
};

use ambit_jwt::{KeySet, UnverifiedToken};
use ambit_k8s_api::is_dns_name;
use ambit_model::ArcStr;

pub use reviewer::TokenReviewer;

/// Tolerated clock skew between the issuer of a token and this process, which verifies it.
const EXPIRY_LEEWAY: Duration = Duration::from_secs(10);
/// Claims that every token must have.
const REQUIRED_CLAIMS: [&str; 3] = ["exp", "aud", "sub"];

/// Caller whose token was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Namespace of the service account.
    pub namespace: ArcStr,
    /// Name of the service account.
    pub service_account: ArcStr,
    /// Pod that the token is bound to.
    pub pod: Option<BoundPod>,
}

/// Pod that a token is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundPod {
    /// Name of the pod.
    pub name: ArcStr,
    /// UID of the pod.
    pub uid: String,
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.service_account)?;
        match &self.pod {
            Some(pod) => write!(f, " (pod {})", pod.name),
            None => Ok(()),
        }
    }
}

/// Reason why a token is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Missing `authorization: Bearer` header.
    #[error("the call carries no bearer token")]
    Missing,
    /// The text is not a JWT.
    #[error("the token is not a JWT")]
    Malformed,
    /// The JWT's signature algorithm is not accepted.
    #[error("the token is signed with an algorithm that is not accepted")]
    UnsupportedAlgorithm,
    /// None of the public keys verifies the signature.
    #[error("the token is signed by none of the configured keys")]
    InvalidSignature,
    /// The token has expired.
    #[error("the token has expired")]
    Expired,
    /// The token is not valid yet (`nbf`).
    #[error("the token is not valid yet")]
    NotYetValid,
    /// The token is issued for other audiences than the control plane's.
    #[error("the token is not meant for audience {0}")]
    WrongAudience(String),
    /// A required claim is missing.
    #[error("the token has no {0}")]
    InvalidClaim(String),
    /// The token's subject is not a service account.
    #[error("the token's subject is not system:serviceaccount:<namespace>:<name>")]
    InvalidSubject,
    /// Claims of the token contradict each other.
    #[error("the token's subject and its kubernetes.io claim name different service accounts")]
    ContradictoryClaims,
    /// The Kubernetes API rejects the token.
    #[error("the Kubernetes API does not accept the token: {0}")]
    Rejected(String),
    /// The API server cannot review the token at present.
    #[error("the token cannot be reviewed by the Kubernetes API: {0}")]
    Unavailable(String),
    /// The caller's address, or the token's issuer, exceeds the rate limit of TokenReviews.
    #[error(
        "too many unknown tokens from this address, or of another issuer, for a TokenReview of each"
    )]
    TooManyReviews,
}

/// Future that resolves to the authenticated caller, or to the reason for rejecting the token.
pub type AuthenticateFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Caller, TokenError>> + Send + 'a>>;

/// Authenticator of callers by their service account tokens.
pub trait Authenticator: fmt::Debug + Send + Sync + 'static {
    /// Authenticates a token that was presented from the address `source`.
    fn authenticate<'a>(&'a self, token: &'a str, source: IpAddr) -> AuthenticateFuture<'a>;
}

/// Reason why the public keys cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The file cannot be read.
    #[error("cannot read the token keys {path}")]
    Read {
        /// Path of the file.
        path: String,
        /// Cause of the error.
        #[source]
        source: std::io::Error,
    },
    /// The file is neither PEM nor JWKS, or has no usable key.
    #[error(
        "{path} holds no usable public key: give PEM public keys (EC P-256, P-384, RSA or Ed25519) or a JWKS"
    )]
    NoUsableKey {
        /// Path of the file.
        path: String,
    },
    /// A PEM key in the file is unusable.
    #[error("key {number} of {path} cannot be used")]
    InvalidKey {
        /// Path of the file.
        path: String,
        /// Position of the key in the file, counted from 1.
        number: usize,
    },
}

/// Verifies tokens with public keys from a file.
pub struct KeyFileAuthenticator {
    keys: KeySet,
    audience: String,
}

impl fmt::Debug for KeyFileAuthenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyFileAuthenticator")
            .field("keys", &self.keys)
            .field("audience", &self.audience)
            .finish()
    }
}

impl KeyFileAuthenticator {
    /// Reads the public keys of the file. The result accepts only tokens for `audience`.
    pub fn open(path: &Path, audience: &str) -> Result<Self, KeyFileError> {
        let name = path.display().to_string();
        let bytes = std::fs::read(path).map_err(|source| KeyFileError::Read {
            path: name.clone(),
            source,
        })?;
        let keys = match KeySet::parse_jwks(&bytes) {
            Ok(set) => set,
            Err(_) => KeySet::parse_pem(&String::from_utf8_lossy(&bytes)).map_err(|number| {
                KeyFileError::InvalidKey {
                    path: name.clone(),
                    number,
                }
            })?,
        };
        for key in keys.unusable_keys() {
            tracing::warn!(path = name, key, "a token key is not used");
        }
        if keys.is_empty() {
            return Err(KeyFileError::NoUsableKey { path: name });
        }
        Ok(Self {
            keys,
            audience: audience.to_owned(),
        })
    }

    /// Verifies a token at the current time.
    pub fn verify(&self, token: &str) -> Result<Caller, TokenError> {
        if token.is_empty() {
            return Err(TokenError::Missing);
        }
        let token = UnverifiedToken::parse(token).map_err(token_error)?;
        token.verify_signature(&self.keys).map_err(token_error)?;
        if let Some(missing) = REQUIRED_CLAIMS
            .into_iter()
            .find(|claim| !token.has_claim(claim))
        {
            return Err(TokenError::InvalidClaim(missing.to_owned()));
        }
        let times = token.check_validity(SystemTime::now(), EXPIRY_LEEWAY);
        times.map_err(token_error)?;
        if !token.has_any_audience([self.audience.as_str()].into_iter()) {
            return Err(TokenError::WrongAudience(self.audience.clone()));
        }
        to_caller(&token)
    }
}

/// Converts an error of `ambit_jwt` to the error that is logged for a caller of the control plane.
fn token_error(error: ambit_jwt::TokenError) -> TokenError {
    use ambit_jwt::TokenError as Jwt;
    match error {
        Jwt::UnsupportedAlgorithm => TokenError::UnsupportedAlgorithm,
        Jwt::Expired => TokenError::Expired,
        Jwt::NotYetValid => TokenError::NotYetValid,
        Jwt::NoKeys | Jwt::UnknownKey | Jwt::InvalidSignature => TokenError::InvalidSignature,
        _ => TokenError::Malformed,
    }
}

impl Authenticator for KeyFileAuthenticator {
    fn authenticate<'a>(&'a self, token: &'a str, _source: IpAddr) -> AuthenticateFuture<'a> {
        Box::pin(async { self.verify(token) })
    }
}

/// Authenticator without public keys, which rejects every token.
#[derive(Debug)]
pub struct UnavailableAuthenticator;

impl Authenticator for UnavailableAuthenticator {
    fn authenticate<'a>(&'a self, _token: &'a str, _source: IpAddr) -> AuthenticateFuture<'a> {
        Box::pin(async { Err(TokenError::InvalidSignature) })
    }
}

/// Returns the bearer token in a call's `authorization` metadata.
pub fn bearer_token(metadata: &tonic::metadata::MetadataMap) -> Result<&str, TokenError> {
    let header = metadata.get("authorization").ok_or(TokenError::Missing)?;
    let header = header.to_str().map_err(|_| TokenError::Malformed)?;
    match header.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Ok(token.trim()),
        _ => Err(TokenError::Missing),
    }
}

/// Returns namespace and name of the service account in a token's subject.
fn parse_subject(subject: &str) -> Result<(&str, &str), TokenError> {
    let parts: Vec<_> = subject.split(':').collect();
    let ["system", "serviceaccount", namespace, account] = parts.as_slice() else {
        return Err(TokenError::InvalidSubject);
    };
    if !is_dns_name(namespace, 63) || !is_dns_name(account, 253) {
        return Err(TokenError::InvalidSubject);
    }
    Ok((namespace, account))
}

/// Returns the caller that a verified token names.
fn to_caller(token: &UnverifiedToken<'_>) -> Result<Caller, TokenError> {
    const KUBERNETES_CLAIM: &str = "kubernetes.io";
    let text = |path: &[&str]| token.text_claim(path).map_err(token_error);
    let subject = text(&["sub"])?.unwrap_or_default();
    let (namespace, account) = parse_subject(subject)?;
    let others = [
        (text(&[KUBERNETES_CLAIM, "namespace"])?, namespace),
        (
            text(&[KUBERNETES_CLAIM, "serviceaccount", "name"])?,
            account,
        ),
    ];
    if others
        .iter()
        .any(|(bound, own)| bound.is_some_and(|bound| bound != *own))
    {
        return Err(TokenError::ContradictoryClaims);
    }
    let uid = text(&[KUBERNETES_CLAIM, "pod", "uid"])?.unwrap_or_default();
    let pod = text(&[KUBERNETES_CLAIM, "pod", "name"])?;
    Ok(Caller {
        namespace: namespace.into(),
        service_account: account.into(),
        pod: pod.map(|name| BoundPod {
            name: name.into(),
            uid: uid.to_owned(),
        }),
    })
}

#[cfg(test)]
mod tests;
