//! Benchmark of JWT verification: by a RequestAuthentication and a policy that requires a request principal in Ambit,
//! by the JWT filter in Envoy.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::compared_proxy::AMBIT_WAYPOINT;

/// File with tokens and the keys that verify them.
const TEST_VECTORS: &str = include_str!("../../../../dataplane/jwt/src/tests/pyjwt.json");
/// Issuer of the tokens; [`AUDIENCE`] is their audience.
const ISSUER: &str = "https://issuer.example";
const AUDIENCE: &str = "shop";

/// Signature algorithm of JWTs (RFC 7518).
#[derive(Clone, Copy, Debug)]
pub(super) enum Algorithm {
    Rs256,
    Es256,
}

impl Algorithm {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Es256 => "ES256",
        }
    }
}

fn generated_tokens() -> Result<Value> {
    Ok(serde_json::from_str(TEST_VECTORS)?)
}

fn key_set() -> Result<String> {
    let made = generated_tokens()?;
    let keys = made.get("key_set").context("there are no keys")?;
    Ok(keys.to_string())
}

/// Returns the manifests for Ambit's waypoint.
pub(super) fn manifests() -> Result<String> {
    let gateway = AMBIT_WAYPOINT.name;
    let target = format!("{{group: gateway.networking.k8s.io, kind: Gateway, name: {gateway}}}");
    Ok(format!(
        "apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {{name: tokens, namespace: {gateway}}}
spec:
  targetRefs: [{target}]
  jwtRules:
  - {{issuer: '{ISSUER}', audiences: [{AUDIENCE}], jwks: '{keys}'}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: with-token, namespace: {gateway}}}
spec:
  targetRefs: [{target}]
  rules: [{{from: [{{source: {{requestPrincipals: ['{ISSUER}/*']}}}}]}}]
---
",
        keys = key_set()?,
    ))
}

/// Returns arguments of `wrk` with the token of the requests.
pub(super) fn arguments(algorithm: Algorithm) -> Result<Vec<String>> {
    let made = generated_tokens()?;
    let token = made.get("tokens").and_then(|of| of.get(algorithm.name()));
    let token = token
        .and_then(Value::as_str)
        .with_context(|| format!("there is no token by {}", algorithm.name()))?;
    Ok(vec!["-H".into(), format!("Authorization: Bearer {token}")])
}

/// Returns the configuration of Envoy's JWT filter.
pub(super) fn jwt_filter() -> Result<Value> {
    Ok(json!({
        "providers": {"tokens": {
            "issuer": ISSUER,
            "audiences": [AUDIENCE],
            "local_jwks": {"inline_string": key_set()?},
        }},
        "rules": [{"match": {"prefix": "/"}, "requires": {"provider_name": "tokens"}}],
    }))
}
