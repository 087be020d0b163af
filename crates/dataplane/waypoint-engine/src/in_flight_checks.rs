//! Limits of checks in flight. A check is a call to an authorization provider or a rate-limit service, or a call that a
//! plugin makes on behalf of a request; it is in flight until it has a response.
//!
//! Each caller and each called service may use only a part of the limit, so that neither a caller nor a slow service
//! can starve others.

use std::{collections::HashMap, hash::Hash, net::IpAddr, sync::Arc};

use ambit_model::{ArcStr, Identity};
use parking_lot::Mutex;

/// Maximum checks in flight on one worker.
const MAX_CHECKS: usize = 2048;
/// Maximum checks in flight at one authorization provider, or at the rate-limit services of one namespace.
const MAX_CHECKS_PER_SERVICE: usize = MAX_CHECKS / 8;
/// Maximum checks in flight for one caller. It is half of a service's limit, so that one caller alone cannot use that
/// up.
const MAX_CHECKS_PER_CALLER: usize = MAX_CHECKS / 16;

/// Called service whose limit a check counts against.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CheckService {
    /// Authorization provider of the mesh's settings, by name.
    Provider(ArcStr),
    /// Rate-limit services that the RateLimit objects of this namespace name.
    RateLimits(ArcStr),
    /// Services that one plugin calls on behalf of requests, by the plugin's key.
    Plugin(ArcStr),
}

/// Caller for whose request a check is made: identity and address.
type Caller = (Option<Identity>, IpAddr);

/// Checks in flight on one worker, counted by caller and by service.
#[derive(Debug, Default)]
pub(crate) struct InFlightChecks(Arc<Mutex<CheckCounts>>);

#[derive(Debug, Default)]
struct CheckCounts {
    total: usize,
    by_caller: HashMap<Caller, usize>,
    by_service: HashMap<CheckService, usize>,
}

/// Permit of one check in flight, released on drop.
#[derive(Debug)]
pub(crate) struct CheckPermit {
    counts: Arc<Mutex<CheckCounts>>,
    caller: Caller,
    service: CheckService,
}

impl Drop for CheckPermit {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        counts.total = counts.total.saturating_sub(1);
        decrement(&mut counts.by_caller, &self.caller);
        decrement(&mut counts.by_service, &self.service);
    }
}

impl InFlightChecks {
    /// Takes a permit for a check; `None` if the worker, the caller or the service is at its limit.
    pub(crate) fn acquire(
        &self,
        identity: Option<&Identity>,
        address: IpAddr,
        service: CheckService,
    ) -> Option<CheckPermit> {
        let caller = (identity.cloned(), address);
        let mut counts = self.0.lock();
        let has_room = counts.total < MAX_CHECKS
            && count(&counts.by_caller, &caller) < MAX_CHECKS_PER_CALLER
            && count(&counts.by_service, &service) < MAX_CHECKS_PER_SERVICE;
        if !has_room {
            return None;
        }
        counts.total += 1;
        *counts.by_caller.entry(caller.clone()).or_default() += 1;
        *counts.by_service.entry(service.clone()).or_default() += 1;
        Some(CheckPermit {
            counts: self.0.clone(),
            caller,
            service,
        })
    }
}

fn count<K: Eq + Hash>(counts: &HashMap<K, usize>, key: &K) -> usize {
    counts.get(key).copied().unwrap_or_default()
}

fn decrement<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acquire_permit(
        checks: &InFlightChecks,
        caller: u8,
        service: &CheckService,
    ) -> Option<CheckPermit> {
        checks.acquire(None, [10, 0, 0, caller].into(), service.clone())
    }

    fn acquire_until_full(
        checks: &InFlightChecks,
        caller: u8,
        service: &CheckService,
    ) -> Vec<CheckPermit> {
        std::iter::from_fn(|| acquire_permit(checks, caller, service)).collect()
    }

    #[test]
    fn one_caller_cannot_use_up_the_checks_of_a_service() {
        let checks = InFlightChecks::default();
        let provider = CheckService::Provider("authz".into());
        let held = acquire_until_full(&checks, 1, &provider);
        assert_eq!(held.len(), MAX_CHECKS_PER_CALLER);
        assert!(acquire_permit(&checks, 2, &provider).is_some());
        drop(held);
        assert!(acquire_permit(&checks, 1, &provider).is_some());
    }

    #[test]
    fn hanging_service_cannot_use_up_all_checks() {
        let checks = InFlightChecks::default();
        let hangs = CheckService::RateLimits("tenant".into());
        let held: Vec<_> = (0..100)
            .flat_map(|caller| acquire_until_full(&checks, caller, &hangs))
            .collect();
        assert_eq!(held.len(), MAX_CHECKS_PER_SERVICE);
        assert!(acquire_permit(&checks, 200, &hangs).is_none());
        for other in [
            CheckService::Provider("tenant".into()),
            CheckService::RateLimits("other".into()),
        ] {
            assert!(acquire_permit(&checks, 200, &other).is_some());
        }
        drop(held);
        let counts = checks.0.lock();
        assert_eq!(counts.total, 0);
        assert!(counts.by_caller.is_empty() && counts.by_service.is_empty());
    }

    #[test]
    fn checks_of_a_worker_are_limited() {
        let checks = InFlightChecks::default();
        let services = (0..20).map(|number| CheckService::RateLimits(arcstr::format!("{number}")));
        let held: Vec<_> = services
            .flat_map(|service| {
                let callers = 0..10;
                callers
                    .flat_map(|caller| acquire_until_full(&checks, caller, &service))
                    .collect::<Vec<_>>()
            })
            .collect();
        assert!(held.len() <= MAX_CHECKS);
    }
}
