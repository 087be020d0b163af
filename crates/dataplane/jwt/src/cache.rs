//! Cache of verified tokens, so that further requests of a client need no signature check.
//!
//! Tokens are keyed by a secret hash, so that clients cannot cause collisions, and no token is stored. Invalid tokens
//! are not cached: a client cannot evict others with them.

use std::{collections::HashMap, sync::Arc};

use aws_lc_rs::hmac;

use crate::token::Verified;

/// Maximum tokens in each of the cache's two generations.
const MAX_GENERATION_TOKENS: usize = 1024;

/// Keyed hash that identifies a token.
pub(crate) type Digest = [u8; 32];

/// Computes keyed hashes of tokens, with a random key of the process.
#[derive(Debug)]
pub(crate) struct Digests(hmac::Key);

impl Default for Digests {
    fn default() -> Self {
        let secret: [u8; 32] = rand::random();
        Self(hmac::Key::new(hmac::HMAC_SHA256, &secret))
    }
}

impl Digests {
    pub(crate) fn of(&self, token: &str) -> Digest {
        let mut digest = Digest::default();
        digest.copy_from_slice(hmac::sign(&self.0, token.as_bytes()).as_ref());
        digest
    }
}

/// Verified tokens of one rule; dropped when the rule's keys change.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    young: HashMap<Digest, Arc<Verified>>,
    old: HashMap<Digest, Arc<Verified>>,
}

impl Cache {
    pub(crate) fn get(&mut self, digest: &Digest) -> Option<Arc<Verified>> {
        if let Some(known) = self.young.get(digest) {
            return Some(known.clone());
        }
        let known = self.old.remove(digest)?;
        self.put(*digest, known.clone());
        Some(known)
    }

    pub(crate) fn put(&mut self, digest: Digest, verified: Arc<Verified>) {
        if self.young.len() >= MAX_GENERATION_TOKENS {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(digest, verified);
    }

    pub(crate) fn remove(&mut self, digest: &Digest) {
        self.young.remove(digest);
        self.old.remove(digest);
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{claims::Claims, json::Json, token::Times};

    #[test]
    fn cache_is_bounded_and_keeps_used_tokens() {
        let digests = Digests::default();
        let verified = Arc::new(Verified {
            claims: Claims::new(Json::Null, &[]),
            times: Times::default(),
            key: [0; 32],
        });
        let mut cache = Cache::default();
        let used = digests.of("used");
        cache.put(used, verified.clone());
        for index in 0..10 * MAX_GENERATION_TOKENS {
            assert!(cache.get(&used).is_some());
            cache.put(digests.of(&index.to_string()), verified.clone());
            assert!(cache.len() <= 2 * MAX_GENERATION_TOKENS);
        }
        assert!(cache.get(&digests.of("0")).is_none());
        cache.remove(&used);
        assert!(cache.get(&used).is_none());
    }
}
