//! Parses and verifies one token (RFC 7515, compact form; RFC 7519): format, signature and validity times.
//!
//! Rejects algorithms that are not in [`Algorithm`], extensions that a token marks as critical, duplicate names,
//! encrypted tokens, and base64url that is not canonical.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::{
    algorithm::Algorithm,
    base64url,
    claims::Claims,
    json::Json,
    key_set::{Fingerprint, KeySet},
};

/// Maximum length of a token, in bytes.
pub const MAX_TOKEN_BYTES: usize = 16 << 10;
/// Tolerated clock skew between the issuer of a token and the waypoint.
pub const CLOCK_SKEW: Duration = Duration::from_secs(60);

/// Reason why a token is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum TokenError {
    #[error("Jwt is not in the form of Header.Payload.Signature with two dots and 3 sections")]
    Malformed,
    #[error("Jwt is longer than 16 KiB")]
    TooLong,
    #[error("Jwt header is not strict JSON, or asks for what is not supported")]
    InvalidHeader,
    #[error("Jwt header [alg] is not supported")]
    UnsupportedAlgorithm,
    #[error("Jwt payload is not strict JSON with claims of the right types")]
    InvalidPayload,
    #[error("Jwt issuer is not configured")]
    WrongIssuer,
    #[error("Audiences in Jwt are not allowed")]
    WrongAudience,
    #[error("Jwt is expired")]
    Expired,
    #[error("Jwt not yet valid")]
    NotYetValid,
    #[error("Jwks of the issuer could not be had")]
    NoKeys,
    #[error("Jwks doesn't have key to match kid or alg from Jwt")]
    UnknownKey,
    #[error("Jwt verification fails")]
    InvalidSignature,
    #[error("The request has more than one Jwt for one place or one issuer")]
    MultipleTokens,
    #[error("Two Jwts claim different values for one header")]
    ConflictingClaimHeaders,
}

/// Parsed token whose signature has not been verified yet.
#[derive(Debug)]
pub struct UnverifiedToken<'a> {
    algorithm: Algorithm,
    key_id: Option<String>,
    pub(crate) claims: Json,
    times: ValidityTimes,
    signing_input: &'a str,
    signature: Vec<u8>,
}

/// Verified token with its claims.
#[derive(Debug)]
pub(crate) struct VerifiedToken {
    pub(crate) claims: Claims,
    pub(crate) times: ValidityTimes,
    /// Fingerprint of the key that verified the signature.
    pub(crate) key_fingerprint: Fingerprint,
}

/// Times that limit the validity of a token (`exp`, `nbf`, `iat`), in seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ValidityTimes {
    expires_at: Option<f64>,
    not_before: Option<f64>,
    issued_at: Option<f64>,
}

impl ValidityTimes {
    fn from_claims(claims: &Json) -> Result<Self, TokenError> {
        let time = |name: &str| match claims.get(name) {
            None => Ok(None),
            Some(Json::Number(number)) => {
                number.as_f64().ok_or(TokenError::InvalidPayload).map(Some)
            }
            Some(_) => Err(TokenError::InvalidPayload),
        };
        Ok(Self {
            expires_at: time("exp")?,
            not_before: time("nbf")?,
            issued_at: time("iat")?,
        })
    }

    pub(crate) fn check_validity(&self, now: SystemTime, skew: Duration) -> Result<(), TokenError> {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (now, skew) = (now.as_secs_f64(), skew.as_secs_f64());
        if self.expires_at.is_some_and(|at| now >= at + skew) {
            return Err(TokenError::Expired);
        }
        let begins = [self.not_before, self.issued_at];
        if begins.into_iter().flatten().any(|at| now < at - skew) {
            return Err(TokenError::NotYetValid);
        }
        Ok(())
    }
}

/// Splits a token into header, payload and signature; `None` if it does not consist of exactly three sections.
pub(crate) fn split_sections(token: &str) -> Option<[&str; 3]> {
    let mut parts = token.split('.');
    let three = [parts.next()?, parts.next()?, parts.next()?];
    parts.next().is_none().then_some(three)
}

impl<'a> UnverifiedToken<'a> {
    /// Parses a token.
    ///
    /// # Errors
    ///
    /// When its format, header or claims violate the rules of this module.
    pub fn parse(token: &'a str) -> Result<Self, TokenError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::TooLong);
        }
        let [header, payload, signature] = split_sections(token).ok_or(TokenError::Malformed)?;
        let decode = |part: &str| base64url(part.as_bytes()).ok_or(TokenError::Malformed);
        let (header_text, payload_text) = (decode(header)?, decode(payload)?);
        let header = Json::parse(&header_text).map_err(|_| TokenError::InvalidHeader)?;
        if !matches!(header, Json::Object(_)) || header.get("crit").is_some() {
            return Err(TokenError::InvalidHeader);
        }
        let algorithm = header.get("alg").and_then(Json::as_text);
        let algorithm = algorithm.ok_or(TokenError::UnsupportedAlgorithm)?;
        let algorithm = Algorithm::from_name(algorithm).ok_or(TokenError::UnsupportedAlgorithm)?;
        let key = match header.get("kid") {
            None => None,
            Some(Json::Text(id)) => Some(id.clone()),
            Some(_) => return Err(TokenError::InvalidHeader),
        };
        let claims = Json::parse(&payload_text).map_err(|_| TokenError::InvalidPayload)?;
        if !matches!(claims, Json::Object(_)) {
            return Err(TokenError::InvalidPayload);
        }
        let signed = token.len() - signature.len() - 1;
        Ok(Self {
            algorithm,
            key_id: key,
            times: ValidityTimes::from_claims(&claims)?,
            claims,
            signing_input: token.get(..signed).ok_or(TokenError::Malformed)?,
            signature: decode(signature)?,
        })
    }

    /// Returns the issuer claim (`iss`).
    pub fn issuer(&self) -> Option<&str> {
        self.claims.get("iss")?.as_text()
    }

    /// Whether the token's audiences include one of `any`; false if `any` is empty.
    pub fn has_any_audience<'b>(&self, mut any: impl Iterator<Item = &'b str>) -> bool {
        let own = self.claims.get("aud");
        any.any(|audience| match own {
            Some(Json::Text(one)) => one == audience,
            Some(Json::List(all)) => all.iter().any(|one| one.as_text() == Some(audience)),
            _ => false,
        })
    }

    /// Whether the token has a claim of this name.
    pub fn has_claim(&self, name: &str) -> bool {
        self.claims
            .get(name)
            .is_some_and(|claim| *claim != Json::Null)
    }

    /// Returns the text of the claim at this path of nested names, if the token has the claim.
    ///
    /// # Errors
    ///
    /// When the claim is not a string, or a claim on its path is not an object.
    pub fn text_claim(&self, path: &[&str]) -> Result<Option<&str>, TokenError> {
        let mut claim = &self.claims;
        for name in path {
            let Json::Object(members) = claim else {
                return Err(TokenError::InvalidPayload);
            };
            claim = match members.get(*name) {
                None | Some(Json::Null) => return Ok(None),
                Some(member) => member,
            };
        }
        claim.as_text().map(Some).ok_or(TokenError::InvalidPayload)
    }

    /// Checks that the token is valid at `now` (`exp`, `nbf`, `iat`), with a tolerated clock skew.
    ///
    /// # Errors
    /// When the token has expired or is not valid yet.
    pub fn check_validity(&self, now: SystemTime, skew: Duration) -> Result<(), TokenError> {
        self.times.check_validity(now, skew)
    }

    /// Verifies the token's signature, but not its validity times.
    ///
    /// # Errors
    ///
    /// When no key verifies the signature.
    pub fn verify_signature(&self, keys: &KeySet) -> Result<(), TokenError> {
        self.signing_key(keys).map(drop)
    }

    /// Verifies the token's validity times and signature. Returns the fingerprint of the signing key.
    pub(crate) fn verify(&self, keys: &KeySet, now: SystemTime) -> Result<Fingerprint, TokenError> {
        self.check_validity(now, CLOCK_SKEW)?;
        self.signing_key(keys)
    }

    fn signing_key(&self, keys: &KeySet) -> Result<Fingerprint, TokenError> {
        if keys.is_empty() {
            return Err(TokenError::NoKeys);
        }
        let mut error = TokenError::UnknownKey;
        for (key, parsed) in keys.candidate_keys(self.algorithm, self.key_id.as_deref()) {
            if parsed
                .verify_sig(self.signing_input.as_bytes(), &self.signature)
                .is_ok()
            {
                return Ok(key.fingerprint);
            }
            error = TokenError::InvalidSignature;
        }
        Err(error)
    }

    pub(crate) fn times(&self) -> ValidityTimes {
        self.times
    }
}
