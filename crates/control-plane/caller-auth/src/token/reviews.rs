//! Rate limit of TokenReviews: each costs the cluster far more than it costs a caller to make up a token. Knows nothing
//! of the API server.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use ambit_rt::Rates;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Caller, TokenError};

/// Time for which an accepted token is cached, during which the token of a deleted pod can still be used.
pub(super) const ACCEPTED: Duration = Duration::from_secs(30);
/// Time for which a rejected token is cached. It is short, since the API server may not have seen the token's pod yet.
pub(super) const REFUSED: Duration = Duration::from_secs(5);
/// Tokens remembered at most, of either kind.
const MOST: usize = 10_000;
/// Reviews for one address in a second, at once after a pause, and in flight.
const EACH: (u32, u32, usize) = (2, 20, 4);
/// The same in a second and at once for tokens of issuers that no accepted token has named yet: those of
/// another cluster, or of this one if it has changed its name.
const STRANGE: (u32, u32) = (5, 50);
/// Number of issuers that are remembered.
const ISSUERS: usize = 8;

pub(super) type Hash = [u8; 32];

/// Decides which tokens are reviewed.
#[derive(Debug)]
pub(super) struct Reviews {
    accepted: Mutex<Remembered<Caller>>,
    refused: Mutex<Remembered<TokenError>>,
    issuers: Mutex<BTreeSet<String>>,
    rates: Rates<IpAddr>,
    strange: Rates<()>,
    turns: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
}

impl Reviews {
    /// Tokens of `issuer` are familiar from the start.
    pub(super) fn new(issuer: Option<String>) -> Self {
        Self {
            accepted: Mutex::default(),
            refused: Mutex::default(),
            issuers: Mutex::new(issuer.into_iter().collect()),
            rates: Rates::new(EACH.0, EACH.1),
            strange: Rates::new(STRANGE.0, STRANGE.1),
            turns: Mutex::default(),
        }
    }

    /// Recent result for a token.
    pub(super) fn find(&self, hash: &Hash, now: Instant) -> Option<Result<Caller, TokenError>> {
        if let Some(caller) = self.accepted.lock().find(hash, now) {
            return Some(Ok(caller));
        }
        self.refused.lock().find(hash, now).map(Err)
    }

    /// Waits for a turn of that address: a caller with many calls at once has one token.
    pub(super) async fn turn(&self, source: IpAddr) -> Option<OwnedSemaphorePermit> {
        let turns = {
            let mut turns = self.turns.lock();
            let known = turns.get(&source).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                if turns.len() >= MOST {
                    turns.retain(|_, one| one.strong_count() > 0);
                }
                let made = Arc::new(Semaphore::new(EACH.2));
                turns.insert(source, Arc::downgrade(&made));
                made
            })
        };
        // It is never closed.
        turns.acquire_owned().await.ok()
    }

    /// Whether a token may be reviewed now.
    pub(super) fn may_ask(&self, source: IpAddr, issuer: &str, now: Instant) -> bool {
        let is_familiar = self.issuers.lock().contains(issuer);
        self.rates.take(source, now) && (is_familiar || self.strange.take((), now))
    }

    /// Stores the API server's review of a token.
    pub(super) fn answered(
        &self,
        hash: Hash,
        issuer: String,
        answer: &Result<Caller, TokenError>,
        now: Instant,
    ) {
        match answer {
            Ok(caller) => {
                let mut issuers = self.issuers.lock();
                if issuers.len() < ISSUERS {
                    issuers.insert(issuer);
                }
                let mut accepted = self.accepted.lock();
                accepted.keep(hash, caller.clone(), now, ACCEPTED);
            }
            // There was no result.
            Err(TokenError::Unavailable(_)) => {}
            Err(error) => self.refused.lock().keep(hash, error.clone(), now, REFUSED),
        }
    }
}

/// Short-lived cache of results by token.
#[derive(Debug)]
struct Remembered<T>(HashMap<Hash, (T, Instant)>);

impl<T> Default for Remembered<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T: Clone> Remembered<T> {
    fn find(&self, hash: &Hash, now: Instant) -> Option<T> {
        let (value, until) = self.0.get(hash)?;
        (now < *until).then(|| value.clone())
    }

    fn keep(&mut self, hash: Hash, value: T, now: Instant, period: Duration) {
        if self.0.len() >= MOST {
            self.0.retain(|_, (_, until)| now < *until);
        }
        if self.0.len() < MOST {
            self.0.insert(hash, (value, now + period));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISSUER: &str = "https://kubernetes.default.svc";

    fn hash(number: usize) -> Hash {
        let mut hash = Hash::default();
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
    fn answers_are_remembered_for_a_moment_and_only_so_many() {
        let (reviews, now) = (Reviews::new(None), Instant::now());
        let refused = Err(TokenError::Rejected("no such pod".to_owned()));
        reviews.answered(hash(1), ISSUER.into(), &Ok(caller()), now);
        reviews.answered(hash(2), ISSUER.into(), &refused, now);
        let away = Err(TokenError::Unavailable("away".to_owned()));
        reviews.answered(hash(3), ISSUER.into(), &away, now);
        let just_before = |period| now + period - Duration::from_millis(1);
        let found = |number, at| reviews.find(&hash(number), at);
        assert_eq!(found(1, just_before(ACCEPTED)), Some(Ok(caller())));
        assert_eq!(found(1, now + ACCEPTED), None);
        assert_eq!(found(2, just_before(REFUSED)), Some(refused.clone()));
        assert_eq!(found(2, now + REFUSED), None);
        assert_eq!(found(3, now), None, "nobody said anything");
        for number in 10..10 + 2 * MOST {
            reviews.answered(hash(number), ISSUER.into(), &refused, now);
        }
        assert_eq!(reviews.refused.lock().0.len(), MOST);
        assert!(found(1, now).is_some(), "refusals displace no acceptance");
        reviews.answered(hash(4), ISSUER.into(), &refused, now + REFUSED);
        assert_eq!(reviews.refused.lock().0.len(), 1);
    }

    #[test]
    fn an_address_that_makes_up_tokens_uses_up_only_its_own_share() {
        let (reviews, now) = (Reviews::new(Some(ISSUER.to_owned())), Instant::now());
        let reviewed = |source, issuer: &str| {
            (0..1000)
                .filter(|_| reviews.may_ask(source, issuer, now))
                .count()
        };
        assert_eq!(reviewed(ip(1), ISSUER), 21);
        assert_eq!(reviewed(ip(2), ISSUER), 21);
    }

    #[test]
    fn tokens_of_strange_issuers_share_little_until_one_is_accepted() {
        let (reviews, now) = (Reviews::new(Some(ISSUER.to_owned())), Instant::now());
        let reviewed = (0..200).filter(|last| reviews.may_ask(ip(*last), "https://elsewhere", now));
        assert_eq!(reviewed.count(), 51);
        assert!(reviews.may_ask(ip(201), ISSUER, now));
        assert!(!reviews.may_ask(ip(202), "https://renamed", now));
        reviews.answered(hash(1), "https://renamed".into(), &Ok(caller()), now);
        assert!(reviews.may_ask(ip(203), "https://renamed", now));
    }

    #[tokio::test]
    async fn one_address_has_only_so_many_reviews_under_way() {
        let reviews = Reviews::new(None);
        let mut held = Vec::new();
        for _ in 0..EACH.2 {
            held.push(reviews.turn(ip(1)).await);
        }
        let mut next = std::pin::pin!(reviews.turn(ip(1)));
        assert!(futures_util::poll!(next.as_mut()).is_pending());
        assert!(reviews.turn(ip(2)).await.is_some());
        held.clear();
        assert!(next.await.is_some());
    }
}
