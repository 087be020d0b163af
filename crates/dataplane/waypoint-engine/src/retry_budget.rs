//! Retry budget: a limit of concurrent retries per destination, so that a failing backend does not receive a multiple
//! of its usual load.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use ambit_model::NamespacedHostname;
use parking_lot::Mutex;

/// Retry budget of a destination, in percent of its active requests.
pub(crate) const RETRY_PERCENT: usize = 20;
/// Minimum number of concurrent retries to one destination that the budget always allows.
pub(crate) const MIN_RETRIES: usize = 3;
/// Number of destinations in the table above which those without active requests are removed.
const MAX_IDLE_DESTINATIONS: usize = 1024;

/// Destination that has a retry budget of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RetryBudgetKey {
    /// Target of a tunnel, for requests that no route forwards elsewhere.
    Address(SocketAddr),
    /// Service that is a route's backend, and its port.
    Service(NamespacedHostname, u16),
}

/// Retry budgets of a worker.
#[derive(Debug, Default)]
pub(crate) struct RetryBudgets(Mutex<HashMap<RetryBudgetKey, Arc<DestinationCounts>>>);

#[derive(Debug, Default)]
struct DestinationCounts {
    active_requests: AtomicUsize,
    retries: AtomicUsize,
}

/// Guard of an active request, which counts towards the retry budget of its destination.
#[derive(Debug)]
pub(crate) struct ActiveRequest(Arc<DestinationCounts>);

/// Permit of one retry, released on drop.
#[derive(Debug)]
pub(crate) struct RetryBudgetPermit(Arc<DestinationCounts>);

impl RetryBudgets {
    /// Counts an active request to a destination until the returned guard is dropped.
    pub(crate) fn begin_request(&self, key: RetryBudgetKey) -> ActiveRequest {
        let mut all = self.0.lock();
        let counts = all.entry(key).or_default().clone();
        counts.active_requests.fetch_add(1, Relaxed);
        if all.len() > MAX_IDLE_DESTINATIONS {
            all.retain(|_, counts| counts.active_requests.load(Relaxed) > 0);
        }
        ActiveRequest(counts)
    }
}

impl ActiveRequest {
    /// Takes a permit for a retry to the request's destination; `None` if the budget is exhausted.
    pub(crate) fn acquire_retry(&self) -> Option<RetryBudgetPermit> {
        let DestinationCounts {
            active_requests: active,
            retries,
        } = &*self.0;
        let most = MIN_RETRIES.max(active.load(Relaxed) * RETRY_PERCENT / 100);
        // Incremented first, so that two callers cannot both take the last permit.
        let permit = RetryBudgetPermit(self.0.clone());
        (retries.fetch_add(1, Relaxed) < most).then_some(permit)
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.active_requests.fetch_sub(1, Relaxed);
    }
}

impl Drop for RetryBudgetPermit {
    fn drop(&mut self) {
        self.0.retries.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_is_a_fifth_of_active_requests_and_at_least_three() {
        let account = || RetryBudgetKey::Address(SocketAddr::from(([10, 0, 0, 1], 80)));
        for (requests, expected) in [(1, 3), (15, 3), (20, 4), (100, 20)] {
            let budgets = RetryBudgets::default();
            let active: Vec<_> = (0..requests)
                .map(|_| budgets.begin_request(account()))
                .collect();
            let permits: Vec<_> = active
                .iter()
                .cycle()
                .map_while(ActiveRequest::acquire_retry)
                .collect();
            assert_eq!(permits.len(), expected, "of {requests}");
            // Other destinations have their own budget.
            let other = budgets.begin_request(RetryBudgetKey::Service(
                NamespacedHostname::new("a", "b"),
                80,
            ));
            assert!(other.acquire_retry().is_some());
            drop(permits);
            assert!(active[0].acquire_retry().is_some());
        }
    }

    #[test]
    fn destinations_without_requests_are_forgotten() {
        let budgets = RetryBudgets::default();
        for port in 0..4000 {
            let address = SocketAddr::from(([10, 0, 0, 1], port));
            drop(budgets.begin_request(RetryBudgetKey::Address(address)));
        }
        assert!(budgets.0.lock().len() <= MAX_IDLE_DESTINATIONS + 1);
    }
}
