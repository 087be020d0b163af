//! JWT authentication of requests at a waypoint (Istio's RequestAuthentication with `targetRefs`).

use arcstr::ArcStr;
use serde::Serialize;

use crate::{NamespacedHostname, PolicyKey, json};

/// RequestAuthentication at a waypoint. An invalid token is rejected; a request without a token passes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Authentication {
    /// Key of the RequestAuthentication.
    pub key: PolicyKey,
    /// Whether the object applies to all traffic of the waypoint rather than to [`Self::services`].
    pub for_gateway: bool,
    /// Services to which the object is attached.
    pub services: Vec<NamespacedHostname>,
    /// JWT rules, one for each issuer.
    pub rules: Vec<JwtRule>,
    /// Reason why the RequestAuthentication could not be decoded in full, set on its fail-closed substitute, which
    /// rejects every request.
    pub not_understood: Option<ArcStr>,
}

/// Issuer whose tokens are accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JwtRule {
    /// Issuer of tokens, as in the claim `iss`.
    pub issuer: ArcStr,
    /// Accepted audiences: the claim `aud` must contain one of them. Any audience is accepted if empty.
    pub audiences: Vec<ArcStr>,
    /// Keys that tokens are verified with.
    pub keys: JwtKeys,
    /// URI from which the control plane fetches the keys; empty for inline keys.
    pub key_source: ArcStr,
    /// Headers that may contain a token, each with the prefix before it. If headers, parameters and cookies are all
    /// empty: `Authorization: Bearer` and the query parameter `access_token`.
    pub headers: Vec<(ArcStr, ArcStr)>,
    /// Query parameters that may contain a token.
    pub params: Vec<ArcStr>,
    /// Cookies that may contain a token.
    pub cookies: Vec<ArcStr>,
    /// Header in which applications receive the token's payload, still base64url-encoded.
    pub payload_header: Option<ArcStr>,
    /// Headers in which applications receive claims: header, claim.
    pub claim_headers: Vec<(ArcStr, ArcStr)>,
    /// Whether the token is forwarded to the application.
    pub forward_token: bool,
    /// Claims whose space-separated words count as separate values (`scope`).
    pub words: Vec<ArcStr>,
}

/// Signing keys of an issuer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum JwtKeys {
    /// JSON Web Key Set (RFC 7517).
    Known(#[serde(serialize_with = "json::secret")] ArcStr),
    /// Keys that have not been fetched yet. A waypoint continues to use earlier keys of the issuer, if it has any.
    Pending,
    /// Reason why the control plane cannot fetch the keys. Every token of the issuer is invalid meanwhile.
    Unavailable(ArcStr),
}

impl Default for JwtKeys {
    fn default() -> Self {
        Self::Unavailable(ArcStr::new())
    }
}
