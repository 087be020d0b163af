//! Cache and rate limit of TokenReviews: a review costs the API server far more than it costs a caller to invent a
//! token. Does not call the API server.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use ambit_rt::RateLimits;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Caller, TokenError};

/// Time for which an accepted token is cached, during which the token of a deleted pod can still be used.
pub(super) const ACCEPTED_TTL: Duration = Duration::from_secs(30);
/// Time for which a rejected token is cached. Short, since the API server may not know the token's pod yet.
pub(super) const REJECTED_TTL: Duration = Duration::from_secs(5);
/// Maximum number of cached tokens, separately for accepted and rejected ones.
const MAX_CACHED_TOKENS: usize = 10_000;
/// Limits of TokenReviews for one source address: per second, burst, and in flight.
const SOURCE_ADDRESS_LIMITS: (u32, u32, usize) = (2, 20, 4);
/// Limits of TokenReviews (per second, burst) for tokens of issuers that no accepted token has named, such as another
/// cluster's, or this cluster's after a change of its issuer.
const UNKNOWN_ISSUER_LIMITS: (u32, u32) = (5, 50);
/// Maximum number of issuers that are remembered from accepted tokens.
const MAX_ISSUERS: usize = 8;

pub(super) type TokenHash = [u8; 32];

/// Decides which tokens are reviewed, and caches the results.
#[derive(Debug)]
pub(super) struct ReviewCache {
    accepted: Mutex<ResultCache<Caller>>,
    rejected: Mutex<ResultCache<TokenError>>,
    known_issuers: Mutex<BTreeSet<String>>,
    address_rates: RateLimits<IpAddr>,
    unknown_issuer_rate: RateLimits<()>,
    address_permits: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
}

impl ReviewCache {
    /// Creates the cache. Tokens of `issuer` count as known from the start, so that [`UNKNOWN_ISSUER_LIMITS`] exempts
    /// them.
    pub(super) fn new(issuer: Option<String>) -> Self {
        Self {
            accepted: Mutex::default(),
            rejected: Mutex::default(),
            known_issuers: Mutex::new(issuer.into_iter().collect()),
            address_rates: RateLimits::new(SOURCE_ADDRESS_LIMITS.0, SOURCE_ADDRESS_LIMITS.1),
            unknown_issuer_rate: RateLimits::new(UNKNOWN_ISSUER_LIMITS.0, UNKNOWN_ISSUER_LIMITS.1),
            address_permits: Mutex::default(),
        }
    }

    /// Returns the cached result of a token's review, unless it has expired.
    pub(super) fn cached_result(
        &self,
        hash: &TokenHash,
        now: Instant,
    ) -> Option<Result<Caller, TokenError>> {
        if let Some(caller) = self.accepted.lock().find(hash, now) {
            return Some(Ok(caller));
        }
        self.rejected.lock().find(hash, now).map(Err)
    }

    /// Waits for one of the source address's permits for in-flight reviews. Concurrent calls of one client present the
    /// same token: the first review serves the others from the cache.
    pub(super) async fn acquire_permit(&self, source: IpAddr) -> Option<OwnedSemaphorePermit> {
        let permits = {
            let mut permits = self.address_permits.lock();
            let known = permits.get(&source).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                if permits.len() >= MAX_CACHED_TOKENS {
                    permits.retain(|_, one| one.strong_count() > 0);
                }
                let made = Arc::new(Semaphore::new(SOURCE_ADDRESS_LIMITS.2));
                permits.insert(source, Arc::downgrade(&made));
                made
            })
        };
        // The semaphore is never closed.
        permits.acquire_owned().await.ok()
    }

    /// Returns whether the rate limits of the address and of the token's issuer allow a review now.
    pub(super) fn may_review(&self, source: IpAddr, issuer: &str, now: Instant) -> bool {
        let is_familiar = self.known_issuers.lock().contains(issuer);
        self.address_rates.try_acquire(source, now)
            && (is_familiar || self.unknown_issuer_rate.try_acquire((), now))
    }

    /// Caches the result of the API server's review of a token.
    pub(super) fn record_result(
        &self,
        hash: TokenHash,
        issuer: String,
        answer: &Result<Caller, TokenError>,
        now: Instant,
    ) {
        match answer {
            Ok(caller) => {
                let mut issuers = self.known_issuers.lock();
                if issuers.len() < MAX_ISSUERS {
                    issuers.insert(issuer);
                }
                let mut accepted = self.accepted.lock();
                accepted.insert(hash, caller.clone(), now, ACCEPTED_TTL);
            }
            // The review failed, so that there is no result to cache.
            Err(TokenError::Unavailable(_)) => {}
            Err(error) => self
                .rejected
                .lock()
                .insert(hash, error.clone(), now, REJECTED_TTL),
        }
    }
}

/// Cached results and their expiry, by the token's hash.
#[derive(Debug)]
struct ResultCache<T>(HashMap<TokenHash, (T, Instant)>);

impl<T> Default for ResultCache<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T: Clone> ResultCache<T> {
    fn find(&self, hash: &TokenHash, now: Instant) -> Option<T> {
        let (value, until) = self.0.get(hash)?;
        (now < *until).then(|| value.clone())
    }

    fn insert(&mut self, hash: TokenHash, value: T, now: Instant, period: Duration) {
        if self.0.len() >= MAX_CACHED_TOKENS {
            self.0.retain(|_, (_, until)| now < *until);
        }
        if self.0.len() < MAX_CACHED_TOKENS {
            self.0.insert(hash, (value, now + period));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISSUER: &str = "https://kubernetes.default.svc";

    fn hash(number: usize) -> TokenHash {
        let mut hash = TokenHash::default();
        hash[..8].copy_from_slice(&number.to_be_bytes());
        hash
    }

    fn caller() -> Caller {
        Caller {
            namespace: "istio-system".into(),
            service_account: "ztunnel".into(),
            pod: None,
        }
    }

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn results_are_cached_briefly_and_in_bounded_number() {
        let (reviews, now) = (ReviewCache::new(None), Instant::now());
        let refused = Err(TokenError::Rejected("no such pod".to_owned()));
        reviews.record_result(hash(1), ISSUER.into(), &Ok(caller()), now);
        reviews.record_result(hash(2), ISSUER.into(), &refused, now);
        let away = Err(TokenError::Unavailable("away".to_owned()));
        reviews.record_result(hash(3), ISSUER.into(), &away, now);
        let just_before = |period| now + period - Duration::from_millis(1);
        let found = |number, at| reviews.cached_result(&hash(number), at);
        assert_eq!(found(1, just_before(ACCEPTED_TTL)), Some(Ok(caller())));
        assert_eq!(found(1, now + ACCEPTED_TTL), None);
        assert_eq!(found(2, just_before(REJECTED_TTL)), Some(refused.clone()));
        assert_eq!(found(2, now + REJECTED_TTL), None);
        assert_eq!(found(3, now), None, "nobody said anything");
        for number in 10..10 + 2 * MAX_CACHED_TOKENS {
            reviews.record_result(hash(number), ISSUER.into(), &refused, now);
        }
        assert_eq!(reviews.rejected.lock().0.len(), MAX_CACHED_TOKENS);
        assert!(found(1, now).is_some(), "refusals displace no acceptance");
        reviews.record_result(hash(4), ISSUER.into(), &refused, now + REJECTED_TTL);
        assert_eq!(reviews.rejected.lock().0.len(), 1);
    }

    #[test]
    fn invented_tokens_exhaust_only_the_share_of_their_address() {
        let (reviews, now) = (ReviewCache::new(Some(ISSUER.to_owned())), Instant::now());
        let reviewed = |source, issuer: &str| {
            (0..1000)
                .filter(|_| reviews.may_review(source, issuer, now))
                .count()
        };
        assert_eq!(reviewed(ip(1), ISSUER), 21);
        assert_eq!(reviewed(ip(2), ISSUER), 21);
    }

    #[test]
    fn unknown_issuers_share_a_small_limit_until_one_is_accepted() {
        let (reviews, now) = (ReviewCache::new(Some(ISSUER.to_owned())), Instant::now());
        let reviewed =
            (0..200).filter(|last| reviews.may_review(ip(*last), "https://elsewhere", now));
        assert_eq!(reviewed.count(), 51);
        assert!(reviews.may_review(ip(201), ISSUER, now));
        assert!(!reviews.may_review(ip(202), "https://renamed", now));
        reviews.record_result(hash(1), "https://renamed".into(), &Ok(caller()), now);
        assert!(reviews.may_review(ip(203), "https://renamed", now));
    }

    #[tokio::test]
    async fn reviews_in_flight_are_limited_per_address() {
        let reviews = ReviewCache::new(None);
        let mut held = Vec::new();
        for _ in 0..SOURCE_ADDRESS_LIMITS.2 {
            held.push(reviews.acquire_permit(ip(1)).await);
        }
        let mut next = std::pin::pin!(reviews.acquire_permit(ip(1)));
        assert!(futures_util::poll!(next.as_mut()).is_pending());
        assert!(reviews.acquire_permit(ip(2)).await.is_some());
        held.clear();
        assert!(next.await.is_some());
    }
}
