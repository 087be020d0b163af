//! Compiled JWT rule for one accepted issuer: where its tokens are, which keys verify them, and how their claims are
//! forwarded.

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use ambit_model::{ArcStr, JwtKeys, JwtRule};
use http::{HeaderName, HeaderValue};
use parking_lot::Mutex;

use crate::{
    cache::{TokenCache, TokenDigest},
    claims::Claims,
    key_set::{Fingerprint, KeySet},
    token::{CLOCK_SKEW, TokenError, UnverifiedToken, VerifiedToken},
    token_source::TokenSource,
};

/// Compiled JWT rule of a RequestAuthentication.
#[derive(Debug)]
pub(crate) struct JwtVerifier {
    config: JwtRule,
    keys: Arc<KeySet>,
    pub(crate) token_sources: Vec<TokenSource>,
    pub(crate) payload_header: Option<HeaderName>,
    claim_headers: Vec<(HeaderName, ArcStr)>,
    cache: Mutex<TokenCache>,
}

impl JwtVerifier {
    /// Compiles a JWT rule. `before` is the earlier version of the rule with the same key source; its keys remain in
    /// use while the new rule's keys are pending.
    ///
    /// # Errors
    ///
    /// When a header name or the key set is invalid.
    pub(crate) fn new(from: JwtRule, before: Option<&Self>) -> Result<Self, String> {
        let name = |text: &str| {
            HeaderName::from_bytes(text.as_bytes()).map_err(|_| format!("{text:?} is no header"))
        };
        let mut sources = Vec::new();
        for (header, prefix) in &from.headers {
            sources.push(TokenSource::Header(name(header)?, prefix.to_string()));
        }
        sources.extend(
            from.params
                .iter()
                .map(|one| TokenSource::QueryParameter(one.to_string())),
        );
        sources.extend(
            from.cookies
                .iter()
                .map(|one| TokenSource::Cookie(one.to_string())),
        );
        if sources.is_empty() {
            sources = TokenSource::default_sources();
        }
        let mut claim_headers = Vec::new();
        for (header, claim) in &from.claim_headers {
            claim_headers.push((name(header)?, claim.clone()));
        }
        let keys = match (&from.keys, before) {
            (JwtKeys::Known(text), _) => {
                let read = KeySet::parse_jwks(text.as_bytes());
                Arc::new(read.map_err(|error| error.to_string())?)
            }
            (JwtKeys::Pending, Some(before)) => before.keys.clone(),
            (JwtKeys::Pending | JwtKeys::Unavailable(_), _) => Arc::default(),
        };
        Ok(Self {
            payload_header: from.payload_header.as_deref().map(name).transpose()?,
            claim_headers,
            token_sources: sources,
            keys,
            cache: Mutex::default(),
            config: from,
        })
    }

    /// Whether another rule has the same issuer and fetches its keys from the same URI.
    pub(crate) fn has_same_key_source(&self, other: &JwtRule) -> bool {
        (&self.config.issuer, &self.config.key_source) == (&other.issuer, &other.key_source)
    }

    pub(crate) fn issuer(&self) -> &ArcStr {
        &self.config.issuer
    }

    pub(crate) fn forwards_token(&self) -> bool {
        self.config.forward_token
    }

    /// Returns the request headers that this rule sets from the claims of a token, and that clients may not set.
    pub(crate) fn output_headers(&self) -> impl Iterator<Item = &HeaderName> {
        let claims = self.claim_headers.iter().map(|(name, _)| name);
        self.payload_header.iter().chain(claims)
    }

    /// Returns a verified token from the cache, if it has not expired.
    pub(crate) fn cached_token(
        &self,
        token: &TokenDigest,
        now: SystemTime,
    ) -> Option<Arc<VerifiedToken>> {
        let mut cache = self.cache.lock();
        let known = cache.get(token)?;
        if known.times.check_validity(now, CLOCK_SKEW).is_err() {
            cache.remove(token);
            return None;
        }
        Some(known)
    }

    /// Verifies a token of the rule's issuer, and caches it.
    pub(crate) fn verify(
        &self,
        digest: TokenDigest,
        token: &UnverifiedToken<'_>,
        now: SystemTime,
    ) -> Result<Arc<VerifiedToken>, TokenError> {
        let key = token.verify(&self.keys, now)?;
        let audiences = self.config.audiences.iter().map(ArcStr::as_str);
        if !self.config.audiences.is_empty() && !token.has_any_audience(audiences) {
            return Err(TokenError::WrongAudience);
        }
        let verified = Arc::new(VerifiedToken {
            claims: Claims::new(token.claims.clone(), &self.config.words),
            times: token.times(),
            key_fingerprint: key,
        });
        self.cache.lock().insert(digest, verified.clone());
        Ok(verified)
    }

    /// Whether the rule still accepts a token that was verified earlier, by its issuer, audiences and signing key,
    /// regardless of its expiry.
    pub(crate) fn still_accepts(&self, claims: &Claims, key: &Fingerprint) -> bool {
        let is_of_issuer = claims.issuer() == Some(self.issuer());
        let audiences = &self.config.audiences;
        let is_for = || claims.any_audience_matches(|own| audiences.iter().any(|one| one == own));
        is_of_issuer && self.keys.contains_key(key) && (audiences.is_empty() || is_for())
    }

    /// Adds the headers in which the application receives the claims of a valid token.
    ///
    /// # Errors
    ///
    /// When another token has set the same header to another value.
    pub(crate) fn set_claim_headers(
        &self,
        payload: &str,
        claims: &Claims,
        headers_of_claims: &mut BTreeMap<String, HeaderValue>,
    ) -> Result<(), TokenError> {
        let mut tell = |name: &HeaderName, text: &str| {
            // A claim that is no valid header value is not passed on; the client's own header is removed either way.
            let Ok(value) = HeaderValue::from_str(text) else {
                return Ok(());
            };
            let before = headers_of_claims.insert(name.as_str().to_owned(), value.clone());
            match before {
                Some(other) if other != value => Err(TokenError::ConflictingClaimHeaders),
                _ => Ok(()),
            }
        };
        if let Some(name) = &self.payload_header {
            tell(name, payload)?;
        }
        for (name, claim) in &self.claim_headers {
            if let Some(text) = claims.header_text(claim) {
                tell(name, &text)?;
            }
        }
        Ok(())
    }
}
