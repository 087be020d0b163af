//! DNS lookups: cached, limited in number, and shared by all requests that wait for the same name.

use std::{
    collections::HashMap,
    future::Future,
    io,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use ambit_model::{ArcStr, Identity};
use ambit_proxy::ResolveError;
use parking_lot::Mutex;
use tokio::sync::{OnceCell, Semaphore};

/// Maximum number of cached names.
const MAX_NAMES: usize = 4096;
/// Maximum number of concurrent DNS lookups.
const MAX_LOOKUPS: usize = 64;
/// Maximum number of concurrent DNS lookups for one caller.
const MAX_LOOKUPS_PER_CALLER: usize = 8;
/// Timeout of a DNS lookup.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum time for which an answer is cached, even if its TTL is shorter.
const MIN_TTL: Duration = Duration::from_secs(1);
pub(super) const MAX_TTL: Duration = Duration::from_secs(60);
/// Time for which a failed DNS lookup is cached.
const FAILURE_TTL: Duration = Duration::from_secs(1);

/// Cached result of a DNS lookup: at least one address, or the failure.
pub(crate) type CachedLookup = Result<Arc<[IpAddr]>, ResolveError>;

/// Error of a caller that has too many lookups in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the caller has {MAX_LOOKUPS_PER_CALLER} look-ups of names in flight")]
pub(crate) struct TooManyLookups;

/// Identity and address of a caller.
pub(crate) type Caller = (Option<Identity>, IpAddr);

/// Cache and limits of DNS lookups for one group of names: those in Kubernetes objects, or those that clients choose.
#[derive(Debug)]
pub(super) struct LookupCache {
    cached: Mutex<HashMap<ArcStr, (Instant, CachedLookup)>>,
    in_flight: Mutex<HashMap<ArcStr, SharedLookup>>,
    slots: Semaphore,
    callers: CallerLookupCounts,
}

/// Number of DNS lookups in flight for each caller.
#[derive(Clone, Debug, Default)]
struct CallerLookupCounts(Arc<Mutex<HashMap<Caller, usize>>>);

/// DNS lookup in flight, which counts towards the limit of the caller that started it.
#[derive(Debug)]
struct Lookup {
    outcome: OnceCell<(Instant, CachedLookup)>,
    /// Slot within the caller's lookup limit, released on drop.
    _caller_slot: Option<CallerSlot>,
}

#[derive(Debug)]
struct CallerSlot {
    callers: CallerLookupCounts,
    caller: Caller,
}

impl CallerLookupCounts {
    fn acquire(&self, caller: Caller) -> Result<CallerSlot, TooManyLookups> {
        let mut counts = self.0.lock();
        let count = counts.entry(caller.clone()).or_default();
        if *count >= MAX_LOOKUPS_PER_CALLER {
            return Err(TooManyLookups);
        }
        *count += 1;
        drop(counts);
        let callers = self.clone();
        Ok(CallerSlot { callers, caller })
    }
}

impl Drop for CallerSlot {
    fn drop(&mut self) {
        let mut counts = self.callers.0.lock();
        if let Some(count) = counts.get_mut(&self.caller) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(&self.caller);
            }
        }
    }
}

/// Shared lookup of one host, and the number of requests that wait for it. The number is kept apart from the reference
/// count of the lookup: requests drop their references only after they have left the lock.
#[derive(Debug)]
struct SharedLookup {
    lookup: Arc<Lookup>,
    waiting_requests: usize,
}

/// Request that waits for a DNS lookup. When the last waiting request is dropped, the lookup is cancelled.
struct LookupWaiter<'a> {
    lookups: &'a LookupCache,
    host: &'a str,
    lookup: Arc<Lookup>,
}

impl Drop for LookupWaiter<'_> {
    fn drop(&mut self) {
        let mut in_flight = self.lookups.in_flight.lock();
        // A later lookup of the same host is not this request's.
        let own = in_flight
            .get_mut(self.host)
            .filter(|entry| Arc::ptr_eq(&entry.lookup, &self.lookup));
        let Some(own) = own else {
            return;
        };
        own.waiting_requests = own.waiting_requests.saturating_sub(1);
        if own.waiting_requests == 0 || self.lookup.outcome.initialized() {
            in_flight.remove(self.host);
        }
    }
}

impl LookupCache {
    pub(super) fn new() -> Self {
        Self {
            cached: Mutex::default(),
            in_flight: Mutex::default(),
            slots: Semaphore::new(MAX_LOOKUPS),
            callers: CallerLookupCounts::default(),
        }
    }

    /// Returns the addresses of a host, from the cache or by `look_up`. A caller's lookups are limited; without caller,
    /// for names of objects, they are not.
    ///
    /// # Errors
    /// When the caller is at its limit.
    pub(super) async fn get<F>(
        &self,
        host: &str,
        caller: Option<Caller>,
        look_up: impl FnOnce() -> F,
    ) -> Result<CachedLookup, TooManyLookups>
    where
        F: Future<Output = io::Result<(Vec<IpAddr>, Instant)>>,
    {
        if let Some((until, known)) = self.cached.lock().get(host)
            && Instant::now() < *until
        {
            return Ok(known.clone());
        }
        let waiting = self.join(host, caller)?;
        let outcome = &waiting.lookup.outcome;
        let (_, known) = outcome
            .get_or_init(|| async {
                let (until, known) = self.look_up(host, look_up()).await;
                self.cache_result(host.into(), until, known.clone());
                (until, known)
            })
            .await;
        Ok(known.clone())
    }

    /// Waits for the host's lookup in flight, together with other requests, or starts a lookup.
    fn join<'a>(
        &'a self,
        host: &'a str,
        caller: Option<Caller>,
    ) -> Result<LookupWaiter<'a>, TooManyLookups> {
        let mut in_flight = self.in_flight.lock();
        let lookup = match in_flight.get_mut(host) {
            Some(entry) => {
                entry.waiting_requests += 1;
                entry.lookup.clone()
            }
            None => {
                let of_caller = caller.map(|caller| self.callers.acquire(caller));
                let lookup = Arc::new(Lookup {
                    outcome: OnceCell::new(),
                    _caller_slot: of_caller.transpose()?,
                });
                let entry = SharedLookup {
                    lookup: lookup.clone(),
                    waiting_requests: 1,
                };
                in_flight.insert(host.into(), entry);
                lookup
            }
        };
        Ok(LookupWaiter {
            lookups: self,
            host,
            lookup,
        })
    }

    async fn look_up(
        &self,
        host: &str,
        look_up: impl Future<Output = io::Result<(Vec<IpAddr>, Instant)>>,
    ) -> (Instant, CachedLookup) {
        let failed = |why: String| ResolveError::Lookup {
            host: host.into(),
            why,
        };
        let looking = async {
            // The semaphore is never closed.
            let _slot = self.slots.acquire().await;
            look_up.await
        };
        let (known, good) = match tokio::time::timeout(LOOKUP_TIMEOUT, looking).await {
            Err(_) => (
                Err(failed(format!("no answer within {LOOKUP_TIMEOUT:?}"))),
                FAILURE_TTL,
            ),
            Ok(Err(error)) => (Err(failed(error.to_string())), FAILURE_TTL),
            Ok(Ok((all, _))) if all.is_empty() => {
                (Err(failed("no addresses".to_owned())), FAILURE_TTL)
            }
            Ok(Ok((all, until))) => {
                let good = until.saturating_duration_since(Instant::now());
                let all: Arc<[IpAddr]> = all.into_iter().map(|ip| ip.to_canonical()).collect();
                (Ok(all), good.clamp(MIN_TTL, MAX_TTL))
            }
        };
        (Instant::now() + good, known)
    }

    /// Caches the result of a lookup. A full cache evicts the name that expires first.
    fn cache_result(&self, host: ArcStr, until: Instant, known: CachedLookup) {
        let mut all = self.cached.lock();
        if all.len() >= MAX_NAMES {
            let first = all.iter().min_by_key(|(_, (until, _))| *until);
            let first = first.map(|(host, _)| host.clone());
            first.and_then(|host| all.remove(&host));
        }
        all.insert(host, (until, known));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use tokio::sync::Notify;

    use super::*;

    fn caller(last: u8) -> Option<Caller> {
        Some((None, [10, 0, 0, last].into()))
    }

    fn resolved(ip: [u8; 4]) -> io::Result<(Vec<IpAddr>, Instant)> {
        Ok((vec![ip.into()], Instant::now() + MAX_TTL))
    }

    /// Polls a future once, so that it starts.
    async fn poll_once<F: Future + Unpin>(future: &mut F) {
        let once = std::future::poll_fn(|cx| {
            let polled = std::pin::Pin::new(&mut *future).poll(cx);
            std::task::Poll::Ready(polled.is_pending())
        });
        assert!(once.await, "it is over");
    }

    #[tokio::test]
    async fn lookups_in_flight_are_limited_per_caller() {
        let lookups = LookupCache::new();
        let mut pending = Vec::new();
        for number in 0..MAX_LOOKUPS_PER_CALLER {
            let (lookups, name) = (&lookups, format!("{number}.example.com"));
            let mut one = Box::pin(async move {
                let never = std::future::pending;
                lookups.get(&name, caller(1), never).await
            });
            poll_once(&mut one).await;
            pending.push(one);
        }
        let ninth = lookups.get("9.example.com", caller(1), || async { resolved([1; 4]) });
        assert_eq!(ninth.await.unwrap_err(), TooManyLookups);
        // A look-up that is in flight already does not count again.
        let mut same = Box::pin(lookups.get("0.example.com", caller(1), std::future::pending));
        poll_once(&mut same).await;
        for other in [caller(2), None] {
            let host = format!("{}.example.com", other.is_none());
            let known = lookups
                .get(&host, other, || async { resolved([1; 4]) })
                .await;
            assert_eq!(known.unwrap().unwrap()[..], [IpAddr::from([1; 4])]);
        }
        drop((pending, same));
        assert!(lookups.in_flight.lock().is_empty());
        assert!(lookups.callers.0.lock().is_empty());
        let again = lookups.get("9.example.com", caller(1), || async { resolved([1; 4]) });
        assert!(again.await.is_ok());
    }

    /// Simulates two requests on different threads: the first has left the lock, but not yet dropped its reference to
    /// the lookup.
    #[test]
    fn lookup_ends_with_requests_that_are_cancelled_at_once() {
        let lookups = LookupCache::new();
        let first = lookups.join("a.example.com", caller(1)).unwrap();
        let second = lookups.join("a.example.com", caller(1)).unwrap();
        let not_dropped_yet = first.lookup.clone();
        drop(first);
        assert_eq!(lookups.in_flight.lock().len(), 1);
        drop(second);
        assert!(lookups.in_flight.lock().is_empty());
        drop(not_dropped_yet);
        assert!(lookups.callers.0.lock().is_empty());
    }

    #[tokio::test]
    async fn lookups_of_the_same_name_are_joined() {
        let lookups = LookupCache::new();
        let (started, answer) = (AtomicUsize::new(0), Notify::new());
        let ask = |last| {
            lookups.get("a.example.com", caller(last), || async {
                started.fetch_add(1, Relaxed);
                answer.notified().await;
                resolved([1; 4])
            })
        };
        let mut first = Box::pin(ask(1));
        poll_once(&mut first).await;
        let mut second = Box::pin(ask(2));
        poll_once(&mut second).await;
        let third = ask(3);
        answer.notify_one();
        let all = tokio::join!(first, second, third);
        for known in [all.0, all.1, all.2] {
            assert_eq!(known.unwrap().unwrap()[..], [IpAddr::from([1; 4])]);
        }
        assert_eq!(started.load(Relaxed), 1);
        assert!(lookups.in_flight.lock().is_empty());
    }

    #[tokio::test]
    async fn waiter_continues_the_lookup_of_a_caller_that_left() {
        let lookups = LookupCache::new();
        let mut first = Box::pin(lookups.get("a.example.com", caller(1), std::future::pending));
        poll_once(&mut first).await;
        let second = lookups.get("a.example.com", caller(2), || async { resolved([2; 4]) });
        let mut second = Box::pin(second);
        poll_once(&mut second).await;
        drop(first);
        assert_eq!(second.await.unwrap().unwrap()[..], [IpAddr::from([2; 4])]);
    }

    #[test]
    fn name_that_expires_first_is_evicted() {
        let lookups = LookupCache::new();
        let now = Instant::now();
        for number in 0..MAX_NAMES + 10 {
            let until = now + MAX_TTL + Duration::from_secs(u64::try_from(number).unwrap());
            let known = Ok(Arc::from([IpAddr::from([127, 0, 0, 1])]));
            lookups.cache_result(arcstr::format!("{number}"), until, known);
        }
        let known = lookups.cached.lock();
        assert_eq!(known.len(), MAX_NAMES);
        assert!(!known.contains_key("9") && known.contains_key("10"));
    }
}
