//! Service account tokens in Kubernetes' format, so that the control plane can check callers.

use std::{
    io,
    time::{SystemTime, UNIX_EPOCH},
};

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::json;

/// How long a token is valid; they are renewed long before.
const LIFETIME_SECONDS: u64 = 12 * 3600;

/// The key that signs the lab's tokens.
pub(crate) struct TokenIssuer {
    key: EncodingKey,
    public_pem: String,
}

impl std::fmt::Debug for TokenIssuer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenIssuer").finish_non_exhaustive()
    }
}

/// The pod that a token is for.
#[derive(Debug)]
pub(crate) struct Bound<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) service_account: &'a str,
    pub(crate) pod: &'a str,
    pub(crate) pod_uid: &'a str,
    pub(crate) node: &'a str,
}

impl TokenIssuer {
    /// Makes a key; it never leaves this process.
    pub(crate) fn new() -> io::Result<Self> {
        let pair = rcgen::KeyPair::generate().map_err(io::Error::other)?;
        let key = EncodingKey::from_ec_pem(pair.serialize_pem().as_bytes());
        Ok(Self {
            key: key.map_err(io::Error::other)?,
            public_pem: pair.public_key_pem(),
        })
    }

    /// The public half.
    pub(crate) fn public_pem(&self) -> &str {
        &self.public_pem
    }

    /// A token for the audience `istio-ca`.
    pub(crate) fn sign(&self, bound: &Bound<'_>) -> io::Result<String> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_err(io::Error::other)?
            .as_secs();
        let Bound {
            namespace,
            service_account,
            pod,
            pod_uid,
            node,
        } = bound;
        let claims = json!({
            "iss": "https://kubernetes.default.svc.cluster.local",
            "aud": ["istio-ca"],
            "sub": format!("system:serviceaccount:{namespace}:{service_account}"),
            "iat": now,
            "nbf": now,
            "exp": now + LIFETIME_SECONDS,
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
