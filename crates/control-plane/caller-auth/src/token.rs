//! Who calls: service account tokens.
//!
//! Tokens are Kubernetes' bound tokens: JWTs with the service account as subject and the pod among the claims.
//! [`KeyFile`] verifies them with public keys from a file; [`Reviewer`] queries the Kubernetes API.

mod review;
mod reviews;
mod unverified;

use std::{fmt, future::Future, net::IpAddr, path::Path, pin::Pin};

use ambit_k8s_api::is_dns_name;
use ambit_model::ArcStr;
use jsonwebtoken::{
    Algorithm, DecodingKey, Validation, decode, decode_header, errors::ErrorKind, jwk::JwkSet,
};
use serde::Deserialize;

pub use review::Reviewer;

/// Tolerated clock skew in seconds.
const LEEWAY: u64 = 10;
/// Maximum length of a token, in bytes.
const MAX_TOKEN: usize = 16 * 1024;

/// A caller whose token was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Namespace of the service account.
    pub namespace: ArcStr,
    /// Name of the service account.
    pub service_account: ArcStr,
    /// The pod the token is bound to.
    pub pod: Option<BoundPod>,
}

/// The pod a token is bound to.
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

/// Why a token is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Missing `authorization: Bearer` header.
    #[error("the call carries no bearer token")]
    Missing,
    /// Text that is not a token.
    #[error("the token is not a JWT")]
    Malformed,
    /// An algorithm that is not accepted.
    #[error("the token is signed with an algorithm that is not accepted")]
    Algorithm,
    /// Signature by none of the keys.
    #[error("the token is signed by none of the configured keys")]
    Signature,
    /// Token that has expired.
    #[error("the token has expired")]
    Expired,
    /// Token that is not valid yet.
    #[error("the token is not valid yet")]
    Immature,
    /// Token for another audience.
    #[error("the token is not meant for audience {0}")]
    Audience(String),
    /// A claim is missing.
    #[error("the token has no {0}")]
    Claim(String),
    /// Subject that is not a service account.
    #[error("the token's subject is not system:serviceaccount:<namespace>:<name>")]
    Subject,
    /// Claims that contradict each other.
    #[error("the token's subject and its kubernetes.io claim name different service accounts")]
    Contradiction,
    /// Token that the Kubernetes API rejects.
    #[error("the Kubernetes API does not accept the token: {0}")]
    Rejected(String),
    /// Token that cannot be verified at present.
    #[error("the token cannot be reviewed by the Kubernetes API: {0}")]
    Unavailable(String),
    /// Too many reviews are in flight.
    #[error(
        "too many unknown tokens from this address, or of another issuer, for a TokenReview of each"
    )]
    TooMany,
}

/// Future of an authentication result.
pub type Answer<'a> = Pin<Box<dyn Future<Output = Result<Caller, TokenError>> + Send + 'a>>;

/// Verifier of tokens.
pub trait Authenticator: fmt::Debug + Send + Sync + 'static {
    /// Authenticates a token presented from an address.
    fn authenticate<'a>(&'a self, token: &'a str, source: IpAddr) -> Answer<'a>;
}

/// Keys that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The file cannot be read.
    #[error("cannot read the token keys {path}")]
    Read {
        /// Path of the file.
        path: String,
        /// Cause of the error.
        #[source]
        source: std::io::Error,
    },
    /// Text that is neither PEM nor JWKS, or has no usable key.
    #[error(
        "{path} holds no usable public key: give PEM public keys (EC P-256, P-384, RSA or Ed25519) or a JWKS"
    )]
    NoKey {
        /// Path of the file.
        path: String,
    },
    /// Unusable key of the set.
    #[error("key {number} of {path} cannot be used")]
    Key {
        /// Path of the file.
        path: String,
        /// Which, counted from 1.
        number: usize,
        /// Cause of the error.
        #[source]
        source: jsonwebtoken::errors::Error,
    },
}

struct Key {
    id: Option<String>,
    key: DecodingKey,
    algorithms: &'static [Algorithm],
}

/// Verifies tokens with public keys from a file.
pub struct KeyFile {
    keys: Vec<Key>,
    audience: String,
}

impl fmt::Debug for KeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyFile")
            .field("keys", &self.keys.len())
            .field("audience", &self.audience)
            .finish()
    }
}

const EC: &[Algorithm] = &[Algorithm::ES256, Algorithm::ES384];
const RSA: &[Algorithm] = &[
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];
const ED: &[Algorithm] = &[Algorithm::EdDSA];

#[derive(Deserialize)]
struct Claims {
    sub: Option<String>,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Option<KubernetesClaims>,
}

#[derive(Deserialize)]
struct KubernetesClaims {
    namespace: Option<String>,
    serviceaccount: Option<NameAndUid>,
    pod: Option<NameAndUid>,
}

#[derive(Deserialize)]
struct NameAndUid {
    name: String,
    #[serde(default)]
    uid: String,
}

impl KeyFile {
    /// Reads the keys. Tokens must be meant for `audience`.
    pub fn open(path: &Path, audience: &str) -> Result<Self, KeysError> {
        let name = path.display().to_string();
        let bytes = std::fs::read(path).map_err(|source| KeysError::Read {
            path: name.clone(),
            source,
        })?;
        let keys = match serde_json::from_slice::<JwkSet>(&bytes) {
            Ok(set) => jwks_keys(&set, &name)?,
            Err(_) => pem_keys(&String::from_utf8_lossy(&bytes), &name)?,
        };
        if keys.is_empty() {
            return Err(KeysError::NoKey { path: name });
        }
        Ok(Self {
            keys,
            audience: audience.to_owned(),
        })
    }

    /// Verifies a token now.
    pub fn verify(&self, token: &str) -> Result<Caller, TokenError> {
        if token.is_empty() {
            return Err(TokenError::Missing);
        }
        if token.len() > MAX_TOKEN {
            return Err(TokenError::Malformed);
        }
        let header = decode_header(token).map_err(|error| match error.kind() {
            ErrorKind::Json(_)
            | ErrorKind::InvalidAlgorithmName
            | ErrorKind::UnsupportedAlgorithm => TokenError::Algorithm,
            _ => TokenError::Malformed,
        })?;
        let mut result = Err(TokenError::Algorithm);
        for key in self
            .keys
            .iter()
            .filter(|key| key.algorithms.contains(&header.alg))
        {
            // A key id only selects the key to try; one that does not match skips a key that has one.
            if let (Some(key_id), Some(id)) = (&header.kid, &key.id)
                && key_id != id
            {
                result = Err(TokenError::Signature);
                continue;
            }
            let mut validation = Validation::new(header.alg);
            validation.leeway = LEEWAY;
            validation.validate_nbf = true;
            validation.set_audience(&[&self.audience]);
            validation.set_required_spec_claims(&["exp", "aud", "sub"]);
            match decode::<Claims>(token, &key.key, &validation) {
                Ok(data) => return caller(data.claims),
                Err(error) => {
                    result = Err(self.token_error(error.kind()));
                    if result != Err(TokenError::Signature) {
                        return result;
                    }
                }
            }
        }
        result
    }

    fn token_error(&self, kind: &ErrorKind) -> TokenError {
        match kind {
            ErrorKind::ExpiredSignature => TokenError::Expired,
            ErrorKind::ImmatureSignature => TokenError::Immature,
            ErrorKind::InvalidAudience => TokenError::Audience(self.audience.clone()),
            ErrorKind::MissingRequiredClaim(claim) => TokenError::Claim(claim.clone()),
            ErrorKind::InvalidAlgorithm | ErrorKind::MissingAlgorithm => TokenError::Algorithm,
            ErrorKind::Json(_)
            | ErrorKind::Base64(_)
            | ErrorKind::Utf8(_)
            | ErrorKind::InvalidToken => TokenError::Malformed,
            _ => TokenError::Signature,
        }
    }
}

impl Authenticator for KeyFile {
    fn authenticate<'a>(&'a self, token: &'a str, _source: IpAddr) -> Answer<'a> {
        Box::pin(async { self.verify(token) })
    }
}

/// Refuses every token, when no keys are configured.
#[derive(Debug)]
pub struct NoKeys;

impl Authenticator for NoKeys {
    fn authenticate<'a>(&'a self, _token: &'a str, _source: IpAddr) -> Answer<'a> {
        Box::pin(async { Err(TokenError::Signature) })
    }
}

/// The token of a call's `authorization` header.
pub fn bearer(metadata: &tonic::metadata::MetadataMap) -> Result<&str, TokenError> {
    let header = metadata.get("authorization").ok_or(TokenError::Missing)?;
    let header = header.to_str().map_err(|_| TokenError::Malformed)?;
    match header.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Ok(token.trim()),
        _ => Err(TokenError::Missing),
    }
}

/// Namespace and name of the account that a subject names.
fn account_of(subject: &str) -> Result<(&str, &str), TokenError> {
    let parts: Vec<_> = subject.split(':').collect();
    let ["system", "serviceaccount", namespace, account] = parts.as_slice() else {
        return Err(TokenError::Subject);
    };
    if !is_dns_name(namespace, 63) || !is_dns_name(account, 253) {
        return Err(TokenError::Subject);
    }
    Ok((namespace, account))
}

fn caller(claims: Claims) -> Result<Caller, TokenError> {
    let subject = claims.sub.unwrap_or_default();
    let (namespace, account) = account_of(&subject)?;
    let kubernetes = claims.kubernetes;
    if let Some(kubernetes) = &kubernetes {
        let other_namespace = kubernetes
            .namespace
            .as_deref()
            .is_some_and(|other| other != namespace);
        let other_account = kubernetes
            .serviceaccount
            .as_ref()
            .is_some_and(|other| other.name != account);
        if other_namespace || other_account {
            return Err(TokenError::Contradiction);
        }
    }
    let pod = kubernetes.and_then(|kubernetes| kubernetes.pod);
    Ok(Caller {
        namespace: namespace.into(),
        service_account: account.into(),
        pod: pod.map(|pod| BoundPod {
            name: pod.name.into(),
            uid: pod.uid,
        }),
    })
}

fn jwks_keys(set: &JwkSet, path: &str) -> Result<Vec<Key>, KeysError> {
    use jsonwebtoken::jwk::AlgorithmParameters;
    let mut keys = Vec::new();
    for (index, jwk) in set.keys.iter().enumerate() {
        let algorithms = match jwk.algorithm {
            AlgorithmParameters::EllipticCurve(_) => EC,
            AlgorithmParameters::RSA(_) => RSA,
            AlgorithmParameters::OctetKeyPair(_) => ED,
            // A shared secret would let every holder make tokens.
            AlgorithmParameters::OctetKey(_) => continue,
            _ => continue,
        };
        let key = DecodingKey::from_jwk(jwk).map_err(|source| KeysError::Key {
            path: path.to_owned(),
            number: index + 1,
            source,
        })?;
        keys.push(Key {
            id: jwk.common.key_id.clone(),
            key,
            algorithms,
        });
    }
    Ok(keys)
}

fn pem_keys(text: &str, path: &str) -> Result<Vec<Key>, KeysError> {
    const END: &str = "-----END PUBLIC KEY-----";
    let mut keys = Vec::new();
    for (index, block) in text
        .split_inclusive(END)
        .filter(|block| block.contains(END))
        .enumerate()
    {
        let start = block.find("-----BEGIN").unwrap_or_default();
        let pem = block.get(start..).unwrap_or_default().as_bytes();
        type Reader = fn(&[u8]) -> jsonwebtoken::errors::Result<DecodingKey>;
        let kinds: [(Reader, &'static [Algorithm]); 3] = [
            (DecodingKey::from_ec_pem, EC),
            (DecodingKey::from_rsa_pem, RSA),
            (DecodingKey::from_ed_pem, ED),
        ];
        let mut error = None;
        let key = kinds
            .into_iter()
            .find_map(|(read, algorithms)| match read(pem) {
                Ok(key) => Some(Key {
                    id: None,
                    key,
                    algorithms,
                }),
                Err(failed) => {
                    error.get_or_insert(failed);
                    None
                }
            });
        match (key, error) {
            (Some(key), _) => keys.push(key),
            (None, Some(source)) => {
                return Err(KeysError::Key {
                    path: path.to_owned(),
                    number: index + 1,
                    source,
                });
            }
            (None, None) => {}
        }
    }
    Ok(keys)
}

#[cfg(test)]
mod tests;
