//! Authentication of requests by JSON web tokens at a waypoint (Istio's RequestAuthentication with `targetRefs`).

use arcstr::ArcStr;
use serde::Serialize;

use crate::{NamespacedHostname, PolicyKey, json};

/// One object. A token that is there must be valid; a request without one passes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Authentication {
    /// Key of the RequestAuthentication.
    pub key: PolicyKey,
    /// Whether it concerns all that goes through the waypoint, rather than [`Self::services`].
    pub for_gateway: bool,
    /// The services it is attached to.
    pub services: Vec<NamespacedHostname>,
    /// Rules, one for each issuer.
    pub rules: Vec<JwtRule>,
    /// Set on a fail-closed substitute: why the original is not understood in full. Everything is refused.
    pub not_understood: Option<ArcStr>,
}

/// An issuer whose tokens are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JwtRule {
    /// The claim `iss`.
    pub issuer: ArcStr,
    /// One of them must be in the claim `aud`; any if empty.
    pub audiences: Vec<ArcStr>,
    /// Keys that tokens are verified with.
    pub keys: JwtKeys,
    /// Where they come from; empty for those that are given with the rule.
    pub key_source: ArcStr,
    /// Headers with a token, and the prefix before it. With neither these nor parameters nor cookies: `Authorization:
    /// Bearer`, and the parameter `access_token`.
    pub headers: Vec<(ArcStr, ArcStr)>,
    /// Parameters of the query with a token.
    pub params: Vec<ArcStr>,
    /// Cookies with a token.
    pub cookies: Vec<ArcStr>,
    /// Where applications get the payload, as it is in the token.
    pub payload_header: Option<ArcStr>,
    /// Where applications get claims: header, claim.
    pub claim_headers: Vec<(ArcStr, ArcStr)>,
    /// Whether applications get the token.
    pub forward_token: bool,
    /// Claims of which the words are values.
    pub words: Vec<ArcStr>,
}

/// The keys of an issuer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum JwtKeys {
    /// A key set (RFC 7517).
    Known(#[serde(serialize_with = "json::secret")] ArcStr),
    /// Nobody has tried yet to fetch them: who knows them from before goes on with them.
    Pending,
    /// Keys that cannot be fetched, for a reason: no token is valid.
    Unavailable(ArcStr),
}

impl Default for JwtKeys {
    fn default() -> Self {
        Self::Unavailable(ArcStr::new())
    }
}
