//! Unverified claims of a token, checked before a TokenReview. Invented tokens must be well-formed
//! before they cost the API server anything.

use std::time::{Duration, SystemTime};

use ambit_jwt::UnverifiedToken;

use super::{TokenError, parse_subject, token_error};

/// Tolerated clock skew between the API server, which decides, and this process.
const EXPIRY_LEEWAY: Duration = Duration::from_secs(60);

/// Returns the issuer of a token that, as far as can be checked without keys, is a bound service account token for
/// `audience` and valid at `now`.
pub(super) fn unverified_issuer(
    token: &str,
    audience: &str,
    now: SystemTime,
) -> Result<String, TokenError> {
    if token.is_empty() {
        return Err(TokenError::Missing);
    }
    if token.ends_with('.') {
        return Err(TokenError::Malformed);
    }
    let token = UnverifiedToken::parse(token).map_err(token_error)?;
    let missing = |claim: &str| Err(TokenError::InvalidClaim(claim.to_owned()));
    if !token.has_claim("aud") {
        return missing("aud");
    }
    if !token.has_any_audience([audience].into_iter()) {
        return Err(TokenError::WrongAudience(audience.to_owned()));
    }
    if !token.has_claim("exp") {
        return missing("exp");
    }
    token
        .check_validity(now, EXPIRY_LEEWAY)
        .map_err(token_error)?;
    let subject = token.text_claim(&["sub"]).map_err(token_error)?;
    parse_subject(subject.unwrap_or_default())?;
    match token.issuer() {
        Some(issuer) if !issuer.is_empty() => Ok(issuer.to_owned()),
        _ => missing("iss"),
    }
}

/// Returns the issuer of the control plane's own token, which is the cluster's.
pub(super) fn issuer_of_own_token(token: &str) -> Option<String> {
    let token = UnverifiedToken::parse(token.trim()).ok()?;
    token.issuer().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use ambit_jwt::MAX_TOKEN_BYTES;
    use base64::Engine;
    use serde_json::{Value, json};

    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn encode_part(value: &Value) -> String {
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(value.to_string())
    }

    fn issuer_of_changed_token(
        change: impl FnOnce(&mut Value, &mut Value),
    ) -> Result<String, TokenError> {
        let mut header = json!({"alg": "RS256", "kid": "k"});
        let mut claims = json!({
            "iss": "https://kubernetes.default.svc", "aud": ["istio-ca"], "exp": NOW + 600,
            "nbf": NOW, "sub": "system:serviceaccount:istio-system:ztunnel",
        });
        change(&mut header, &mut claims);
        let token = format!("{}.{}.c2ln", encode_part(&header), encode_part(&claims));
        unverified_issuer(&token, "istio-ca", UNIX_EPOCH + Duration::from_secs(NOW))
    }

    #[test]
    fn well_formed_token_yields_its_issuer() {
        let expected = Ok("https://kubernetes.default.svc".to_owned());
        assert_eq!(issuer_of_changed_token(|_, _| ()), expected);
        assert_eq!(
            issuer_of_changed_token(|_, claims| claims["aud"] = json!("istio-ca")),
            expected
        );
        assert_eq!(
            issuer_of_changed_token(|_, claims| claims["exp"] = json!(NOW - 30)),
            expected
        );
    }

    #[test]
    fn malformed_token_is_rejected_with_the_reason() {
        let claim = |name: &'static str, value: Value| {
            issuer_of_changed_token(move |_, claims| claims[name] = value)
        };
        let without = |name: &str| {
            issuer_of_changed_token(|_, claims| {
                claims.as_object_mut().unwrap().remove(name);
            })
        };
        let missing = |name: &str| TokenError::InvalidClaim(name.to_owned());
        let audience = TokenError::WrongAudience("istio-ca".to_owned());
        for (result, reason) in [
            (claim("exp", json!(NOW - 120)), TokenError::Expired),
            (without("exp"), missing("exp")),
            (claim("exp", Value::Null), TokenError::Malformed),
            (claim("nbf", json!(NOW + 120)), TokenError::NotYetValid),
            (claim("nbf", json!(u64::MAX)), TokenError::NotYetValid),
            (
                claim("aud", json!(["https://kubernetes"])),
                audience.clone(),
            ),
            (claim("aud", json!([])), audience.clone()),
            (claim("aud", Value::Null), missing("aud")),
            (claim("aud", json!(7)), audience),
            (
                claim("sub", json!("system:node:n1")),
                TokenError::InvalidSubject,
            ),
            (claim("iss", json!("")), missing("iss")),
            (
                issuer_of_changed_token(|header, _| header["alg"] = json!("HS256")),
                TokenError::UnsupportedAlgorithm,
            ),
            (
                issuer_of_changed_token(|header, _| header["alg"] = json!("none")),
                TokenError::UnsupportedAlgorithm,
            ),
        ] {
            assert_eq!(result, Err(reason));
        }
        let forms = ["", "a", "a.b", "a.b.c", "..", "e30.e30."];
        for text in forms
            .iter()
            .copied()
            .chain([&*"x".repeat(MAX_TOKEN_BYTES + 1)])
        {
            assert!(
                unverified_issuer(text, "istio-ca", SystemTime::now()).is_err(),
                "{text}"
            );
        }
    }
}
