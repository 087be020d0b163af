//! Rate limits: token buckets by a key that requests share.
//!
//! A bucket is stored as the time at which it will be full again. Full buckets are not stored, so that keys without
//! recent requests use no memory. Keys are hashes that clients cannot choose.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// Rate and burst of a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Requests per interval.
    pub requests: u32,
    /// Interval of the rate.
    pub interval: Duration,
    /// Burst size: number of requests that pass at once after an idle period; at least one.
    pub burst: u32,
}

impl RateLimit {
    /// Returns the time in which one token is added, in nanoseconds.
    fn nanoseconds_per_token(&self) -> u64 {
        let per = u64::try_from(self.interval.as_nanos()).unwrap_or(u64::MAX);
        (per / u64::from(self.requests.max(1))).max(1)
    }

    /// Returns the time in which an empty bucket is filled, in nanoseconds.
    fn burst_nanoseconds(&self) -> u64 {
        self.nanoseconds_per_token()
            .saturating_mul(self.burst.max(1).into())
    }
}

/// Token buckets of one rate limit, one for each key.
#[derive(Debug)]
pub struct TokenBuckets {
    rate: RateLimit,
    max_keys: usize,
    created_at: Instant,
    /// Time at which each bucket is full again, in nanoseconds from the creation of the buckets.
    full_at: HashMap<u128, u64>,
    /// Time at which the bucket that all excess keys share is full again, in nanoseconds from the creation of the
    /// buckets.
    shared_full_at: u64,
    /// Earliest time of the next removal of full buckets, in nanoseconds from the creation of the buckets.
    next_sweep: u64,
}

/// Decision of a rate limit about one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimitDecision {
    /// Time after which the rejected request would pass; `None` if the request passes.
    pub retry_after: Option<Duration>,
    /// Number of further requests that would pass immediately.
    pub remaining: u32,
    /// Time until the bucket is full again.
    pub full_after: Duration,
}

impl TokenBuckets {
    /// Returns the number of keys with a bucket of their own.
    pub fn key_count(&self) -> usize {
        self.full_at.len()
    }

    /// Creates token buckets for at most `most` keys; all further keys share one bucket.
    pub fn new(rate: RateLimit, most: usize, now: Instant) -> Self {
        Self {
            rate,
            max_keys: most,
            created_at: now,
            full_at: HashMap::new(),
            shared_full_at: 0,
            next_sweep: 0,
        }
    }

    /// Takes a token from the bucket of a key, and decides whether the request passes.
    pub fn try_take_token(&mut self, key: u128, now: Instant) -> RateLimitDecision {
        let since = now.saturating_duration_since(self.created_at).as_nanos();
        let now = u64::try_from(since).unwrap_or(u64::MAX);
        let (step, depth) = (
            self.rate.nanoseconds_per_token(),
            self.rate.burst_nanoseconds(),
        );
        let is_known = self.full_at.contains_key(&key);
        if !is_known && self.full_at.len() >= self.max_keys && now >= self.next_sweep {
            self.full_at.retain(|_, full_at| *full_at > now);
            // Swept rarely: no bucket can be full before it had the time to fill.
            self.next_sweep = now.saturating_add(step.max(1_000_000_000));
        }
        let has_place = is_known || self.full_at.len() < self.max_keys;
        let full_at = match has_place {
            true => self.full_at.get(&key).copied().unwrap_or(now),
            false => self.shared_full_at,
        };
        let after = full_at.max(now).saturating_add(step);
        let missing = after - now;
        if missing > depth {
            return RateLimitDecision {
                retry_after: Some(Duration::from_nanos(missing - depth)),
                remaining: 0,
                full_after: Duration::from_nanos(missing - step),
            };
        }
        if has_place {
            self.full_at.insert(key, after);
        } else {
            self.shared_full_at = after;
        }
        RateLimitDecision {
            retry_after: None,
            remaining: u32::try_from((depth - missing) / step).unwrap_or(u32::MAX),
            full_after: Duration::from_nanos(missing),
        }
    }

    /// Returns the number of keys with a bucket of their own.
    pub fn len(&self) -> usize {
        self.full_at.len()
    }

    /// Whether no key has a bucket of its own.
    pub fn is_empty(&self) -> bool {
        self.full_at.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RATE: RateLimit = RateLimit {
        requests: 10,
        interval: Duration::from_secs(1),
        burst: 3,
    };
    const TENTH_SECOND: Duration = Duration::from_millis(100);

    #[test]
    fn burst_passes_then_the_rate_applies() {
        let start = Instant::now();
        let mut buckets = TokenBuckets::new(RATE, 10, start);
        let remaining: Vec<u32> = (0..3)
            .map(|_| buckets.try_take_token(1, start).remaining)
            .collect();
        assert_eq!(remaining, [2, 1, 0]);
        let refused = buckets.try_take_token(1, start);
        assert_eq!(refused.retry_after, Some(TENTH_SECOND));
        assert_eq!(refused.remaining, 0);
        assert_eq!(refused.full_after, TENTH_SECOND * 3);
        // A rejected request takes no token.
        assert!(
            buckets
                .try_take_token(1, start + TENTH_SECOND)
                .retry_after
                .is_none()
        );
        assert!(
            buckets
                .try_take_token(1, start + TENTH_SECOND)
                .retry_after
                .is_some()
        );
        // Tokens accumulate up to the burst only.
        let later = start + Duration::from_secs(3600);
        let passed = (0..10).filter(|_| buckets.try_take_token(1, later).retry_after.is_none());
        assert_eq!(passed.count(), 3);
    }

    #[test]
    fn keys_have_buckets_of_their_own() {
        let start = Instant::now();
        let mut buckets = TokenBuckets::new(RateLimit { burst: 1, ..RATE }, 10, start);
        assert!(buckets.try_take_token(1, start).retry_after.is_none());
        assert!(buckets.try_take_token(1, start).retry_after.is_some());
        assert!(buckets.try_take_token(2, start).retry_after.is_none());
    }

    #[test]
    fn excess_keys_share_one_bucket_until_others_refill() {
        let start = Instant::now();
        let mut buckets = TokenBuckets::new(RateLimit { burst: 1, ..RATE }, 2, start);
        for key in [1, 2, 3] {
            assert!(
                buckets.try_take_token(key, start).retry_after.is_none(),
                "{key}"
            );
        }
        for key in [4, 5] {
            assert!(
                buckets.try_take_token(key, start).retry_after.is_some(),
                "{key}"
            );
        }
        assert_eq!(buckets.len(), 2);
        let later = start + Duration::from_secs(2);
        assert!(buckets.try_take_token(6, later).retry_after.is_none());
        assert!(buckets.try_take_token(7, later).retry_after.is_none());
        assert_eq!(buckets.len(), 2);
    }

    proptest! {
        #[test]
        fn burst_and_rate_bound_the_passing_requests(
            requests in 1..50_u32,
            burst in 1..20_u32,
            waits in prop::collection::vec(0..200_u64, 1..200),
        ) {
            let rate = RateLimit { requests, interval: Duration::from_secs(1), burst };
            let start = Instant::now();
            let mut buckets = TokenBuckets::new(rate, 1, start);
            let (mut passed, mut elapsed) = (0_u64, 0);
            for wait in waits {
                elapsed += wait;
                let decision = buckets.try_take_token(7, start + Duration::from_millis(elapsed));
                passed += u64::from(decision.retry_after.is_none());
                if let Some(after) = decision.retry_after {
                    let then = start + Duration::from_millis(elapsed) + after;
                    let mut again = TokenBuckets::new(rate, 1, start);
                    again.full_at.clone_from(&buckets.full_at);
                    prop_assert!(again.try_take_token(7, then).retry_after.is_none());
                }
            }
            let step = 1_000_000_000 / u64::from(requests);
            let most = u64::from(burst) + elapsed * 1_000_000 / step;
            prop_assert!(passed <= most, "{} of {}", passed, most);
        }
    }
}
