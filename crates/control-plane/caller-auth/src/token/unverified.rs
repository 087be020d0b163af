//! Unverified claims of a token, checked before a TokenReview. Made-up tokens must be well-formed before they cost the
//! API server anything.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jsonwebtoken::{Algorithm, dangerous::insecure_decode};
use serde::Deserialize;

use super::{EC, ED, MAX_TOKEN, RSA, TokenError, account_of};

/// Tolerated clock skew between the API server, which decides, and this process.
const LEEWAY: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
struct Claims {
    iss: Option<String>,
    sub: Option<String>,
    aud: Option<Audiences>,
    exp: Option<u64>,
    nbf: Option<u64>,
}

/// RFC 7519, 4.1.3: one or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum Audiences {
    One(String),
    Several(Vec<String>),
}

/// The issuer that a token names, if it is a bound service account token for `audience` that is neither too
/// old nor too young, as far as that shows without its keys.
pub(super) fn issuer(token: &str, audience: &str, now: SystemTime) -> Result<String, TokenError> {
    if token.is_empty() {
        return Err(TokenError::Missing);
    }
    if token.len() > MAX_TOKEN {
        return Err(TokenError::Malformed);
    }
    let signature = token.rsplit_once('.').map(|(_, signature)| signature);
    if signature.is_none_or(str::is_empty) {
        return Err(TokenError::Malformed);
    }
    let token = insecure_decode::<Claims>(token).map_err(|_| TokenError::Malformed)?;
    let is_public_key = |algorithm: &Algorithm| {
        [EC, RSA, ED]
            .iter()
            .any(|algorithms| algorithms.contains(algorithm))
    };
    if !is_public_key(&token.header.alg) {
        return Err(TokenError::Algorithm);
    }
    let claims = token.claims;
    let is_ours = match &claims.aud {
        None => return Err(TokenError::Claim("aud".to_owned())),
        Some(Audiences::One(one)) => one == audience,
        Some(Audiences::Several(several)) => several.iter().any(|one| one == audience),
    };
    if !is_ours {
        return Err(TokenError::Audience(audience.to_owned()));
    }
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = |claim: u64| Duration::from_secs(claim);
    match claims.exp {
        None => return Err(TokenError::Claim("exp".to_owned())),
        Some(exp) if seconds(exp).saturating_add(LEEWAY) < now => return Err(TokenError::Expired),
        Some(_) => {}
    }
    if claims.nbf.is_some_and(|nbf| seconds(nbf) > now + LEEWAY) {
        return Err(TokenError::Immature);
    }
    account_of(claims.sub.as_deref().unwrap_or_default())?;
    match claims.iss {
        Some(issuer) if !issuer.is_empty() => Ok(issuer),
        _ => Err(TokenError::Claim("iss".to_owned())),
    }
}

/// The issuer that a token of our own names: that of the cluster.
pub(super) fn issuer_of_own(token: &str) -> Option<String> {
    insecure_decode::<Claims>(token.trim()).ok()?.claims.iss
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use serde_json::{Value, json};

    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn part(value: &Value) -> String {
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(value.to_string())
    }

    fn judge(change: impl FnOnce(&mut Value, &mut Value)) -> Result<String, TokenError> {
        let mut header = json!({"alg": "RS256", "kid": "k"});
        let mut claims = json!({
            "iss": "https://kubernetes.default.svc", "aud": ["istio-ca"], "exp": NOW + 600,
            "nbf": NOW, "sub": "system:serviceaccount:istio-system:ztunnel",
        });
        change(&mut header, &mut claims);
        let token = format!("{}.{}.c2ln", part(&header), part(&claims));
        issuer(&token, "istio-ca", UNIX_EPOCH + Duration::from_secs(NOW))
    }

    #[test]
    fn a_token_that_may_be_good_names_its_issuer() {
        let expected = Ok("https://kubernetes.default.svc".to_owned());
        assert_eq!(judge(|_, _| ()), expected);
        assert_eq!(
            judge(|_, claims| claims["aud"] = json!("istio-ca")),
            expected
        );
        assert_eq!(judge(|_, claims| claims["exp"] = json!(NOW - 30)), expected);
    }

    #[test]
    fn a_token_that_cannot_be_good_is_refused_for_its_reason() {
        let claim = |name: &'static str, value: Value| judge(move |_, claims| claims[name] = value);
        let missing = |name: &str| TokenError::Claim(name.to_owned());
        let audience = TokenError::Audience("istio-ca".to_owned());
        for (result, reason) in [
            (claim("exp", json!(NOW - 120)), TokenError::Expired),
            (claim("exp", Value::Null), missing("exp")),
            (claim("nbf", json!(NOW + 120)), TokenError::Immature),
            (claim("nbf", json!(u64::MAX)), TokenError::Immature),
            (
                claim("aud", json!(["https://kubernetes"])),
                audience.clone(),
            ),
            (claim("aud", json!([])), audience),
            (claim("aud", Value::Null), missing("aud")),
            (claim("aud", json!(7)), TokenError::Malformed),
            (claim("sub", json!("system:node:n1")), TokenError::Subject),
            (claim("iss", json!("")), missing("iss")),
            (
                judge(|header, _| header["alg"] = json!("HS256")),
                TokenError::Algorithm,
            ),
            (
                judge(|header, _| header["alg"] = json!("none")),
                TokenError::Malformed,
            ),
        ] {
            assert_eq!(result, Err(reason));
        }
        let forms = ["", "a", "a.b", "a.b.c", "..", "e30.e30."];
        for text in forms.iter().copied().chain([&*"x".repeat(MAX_TOKEN + 1)]) {
            assert!(
                issuer(text, "istio-ca", SystemTime::now()).is_err(),
                "{text}"
            );
        }
    }
}
