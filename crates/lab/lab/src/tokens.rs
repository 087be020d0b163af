//! Service account tokens in Kubernetes' format, by which the lab's control plane authenticates callers.

use std::{
    fs, io,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::json;

/// Lifetime of a token in seconds; tokens are renewed much earlier.
const TOKEN_LIFETIME_SECONDS: u64 = 12 * 3600;
/// Interval at which service account tokens are renewed.
pub(crate) const TOKEN_RENEW_INTERVAL: Duration = Duration::from_secs(3600);
/// Audience of the service account tokens.
pub(crate) const TOKEN_AUDIENCE: &str = "istio-ca";
/// Name of the token's file in the pod's directory.
pub(crate) const TOKEN_FILE_NAME: &str = "token";

/// Issuer of the lab's service account tokens, with its private key.
pub(crate) struct TokenIssuer {
    key: EncodingKey,
    public_pem: String,
}

impl std::fmt::Debug for TokenIssuer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenIssuer").finish_non_exhaustive()
    }
}

/// Pod to which a token is bound, with its service account and node.
#[derive(Debug)]
pub(crate) struct TokenSubject<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) service_account: &'a str,
    pub(crate) pod: &'a str,
    pub(crate) pod_uid: &'a str,
    pub(crate) node: &'a str,
}

impl TokenIssuer {
    /// Generates the key of the issuer, which never leaves this process.
    pub(crate) fn new() -> io::Result<Self> {
        let pair = rcgen::KeyPair::generate().map_err(io::Error::other)?;
        let key = EncodingKey::from_ec_pem(pair.serialize_pem().as_bytes());
        Ok(Self {
            key: key.map_err(io::Error::other)?,
            public_pem: pair.public_key_pem(),
        })
    }

    /// Returns the public key in PEM, by which tokens are verified.
    pub(crate) fn public_pem(&self) -> &str {
        &self.public_pem
    }

    /// Writes a new token to a file atomically: readers see the old token or the new token.
    pub(crate) fn write(&self, bound: &TokenSubject<'_>, path: &Path) -> io::Result<()> {
        let fresh = path.with_extension("new");
        fs::write(&fresh, self.sign(bound)?)?;
        fs::rename(fresh, path)
    }

    /// Signs a token that is bound to a pod, for the audience [`TOKEN_AUDIENCE`].
    fn sign(&self, bound: &TokenSubject<'_>) -> io::Result<String> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_err(io::Error::other)?
            .as_secs();
        let TokenSubject {
            namespace,
            service_account,
            pod,
            pod_uid,
            node,
        } = bound;
        let claims = json!({
            "iss": "https://kubernetes.default.svc.cluster.local",
            "aud": [TOKEN_AUDIENCE],
            "sub": format!("system:serviceaccount:{namespace}:{service_account}"),
            "iat": now,
            "nbf": now,
            "exp": now + TOKEN_LIFETIME_SECONDS,
            "kubernetes.io": {
                "namespace": namespace,
                "serviceaccount": {"name": service_account, "uid": format!("sa-{namespace}-{service_account}")},
                "pod": {"name": pod, "uid": pod_uid},
                "node": {"name": node, "uid": format!("uid-{node}")},
            },
        });
        jsonwebtoken::encode(&Header::new(Algorithm::ES256), &claims, &self.key)
            .map_err(io::Error::other)
    }
}
