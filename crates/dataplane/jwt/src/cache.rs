//! Cache of verified tokens, so that the signature of a repeated token is not verified again.
//!
//! Tokens are keyed by a hash with a secret key, so that clients cannot cause collisions; the tokens themselves are not
//! stored. Invalid tokens are not cached, so that a client cannot evict other clients' tokens with them.

use std::{collections::HashMap, sync::Arc};

use aws_lc_rs::hmac;

use crate::token::VerifiedToken;

/// Maximum number of tokens in each of the cache's two generations.
const MAX_GENERATION_TOKENS: usize = 1024;

/// Keyed hash that identifies a token.
pub(crate) type TokenDigest = [u8; 32];

/// Computes keyed hashes of tokens, with a random key of the process.
#[derive(Debug)]
pub(crate) struct TokenHasher(hmac::Key);

impl Default for TokenHasher {
    fn default() -> Self {
        let secret: [u8; 32] = rand::random();
        Self(hmac::Key::new(hmac::HMAC_SHA256, &secret))
    }
}

impl TokenHasher {
    pub(crate) fn digest(&self, token: &str) -> TokenDigest {
        let mut digest = TokenDigest::default();
        digest.copy_from_slice(hmac::sign(&self.0, token.as_bytes()).as_ref());
        digest
    }
}

/// Verified tokens of one JWT rule, discarded when the rule or its keys change.
#[derive(Debug, Default)]
pub(crate) struct TokenCache {
    current_generation: HashMap<TokenDigest, Arc<VerifiedToken>>,
    previous_generation: HashMap<TokenDigest, Arc<VerifiedToken>>,
}

impl TokenCache {
    pub(crate) fn get(&mut self, digest: &TokenDigest) -> Option<Arc<VerifiedToken>> {
        if let Some(known) = self.current_generation.get(digest) {
            return Some(known.clone());
        }
        let known = self.previous_generation.remove(digest)?;
        self.insert(*digest, known.clone());
        Some(known)
    }

    pub(crate) fn insert(&mut self, digest: TokenDigest, verified: Arc<VerifiedToken>) {
        if self.current_generation.len() >= MAX_GENERATION_TOKENS {
            self.previous_generation = std::mem::take(&mut self.current_generation);
        }
        self.current_generation.insert(digest, verified);
    }

    pub(crate) fn remove(&mut self, digest: &TokenDigest) {
        self.current_generation.remove(digest);
        self.previous_generation.remove(digest);
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.current_generation.len() + self.previous_generation.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{claims::Claims, json::Json, token::ValidityTimes};

    #[test]
    fn cache_is_bounded_and_keeps_used_tokens() {
        let digests = TokenHasher::default();
        let verified = Arc::new(VerifiedToken {
            claims: Claims::new(Json::Null, &[]),
            times: ValidityTimes::default(),
            key_fingerprint: [0; 32],
        });
        let mut cache = TokenCache::default();
        let used = digests.digest("used");
        cache.insert(used, verified.clone());
        for index in 0..10 * MAX_GENERATION_TOKENS {
            assert!(cache.get(&used).is_some());
            cache.insert(digests.digest(&index.to_string()), verified.clone());
            assert!(cache.len() <= 2 * MAX_GENERATION_TOKENS);
        }
        assert!(cache.get(&digests.digest("0")).is_none());
        cache.remove(&used);
        assert!(cache.get(&used).is_none());
    }
}
