//! Circuit breakers: counters of requests, pending requests and retries to a destination. Never waits.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use ambit_model::DestinationLimits;

/// Circuit breaker whose limit was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CircuitBreakerLimit {
    /// Limit of open connections.
    Connections,
    /// Limit of requests that wait for a connection.
    Pending,
    /// Limit of active requests.
    Requests,
    /// Limit of active retries.
    Retries,
}

impl CircuitBreakerLimit {
    /// All circuit breaker limits.
    pub const ALL: [Self; 4] = [
        Self::Connections,
        Self::Pending,
        Self::Requests,
        Self::Retries,
    ];

    /// Returns the limit's name for metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Pending => "pending",
            Self::Requests => "requests",
            Self::Retries => "retries",
        }
    }
}

/// Counters of a destination's pending requests, active requests and retries. They remain when its policy changes.
#[derive(Debug, Default)]
pub struct LimitCounters {
    pending_requests: Arc<AtomicU32>,
    active_requests: Arc<AtomicU32>,
    active_retries: Arc<AtomicU32>,
}

/// Permit that counts one request or retry against its limit until dropped.
#[derive(Debug)]
pub struct LimitPermit(Arc<AtomicU32>);

impl Drop for LimitPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl LimitCounters {
    /// Acquires a permit for an active request.
    ///
    /// # Errors
    ///
    /// When the limit of requests is reached.
    pub fn acquire_request(
        &self,
        of: &DestinationLimits,
    ) -> Result<LimitPermit, CircuitBreakerLimit> {
        let most = if of.requests == 0 {
            None
        } else {
            Some(of.requests)
        };
        try_acquire(&self.active_requests, most).ok_or(CircuitBreakerLimit::Requests)
    }

    /// Acquires a permit for a request that waits for a connection.
    ///
    /// # Errors
    ///
    /// When the limit of pending requests is reached.
    pub fn acquire_pending(
        &self,
        of: &DestinationLimits,
    ) -> Result<LimitPermit, CircuitBreakerLimit> {
        try_acquire(&self.pending_requests, of.pending).ok_or(CircuitBreakerLimit::Pending)
    }

    /// Acquires a permit for an active retry.
    ///
    /// # Errors
    ///
    /// When the limit of retries is reached.
    pub fn acquire_retry(
        &self,
        of: &DestinationLimits,
    ) -> Result<LimitPermit, CircuitBreakerLimit> {
        let most = match of.retry_budget {
            Some(budget) => {
                let active = u64::from(self.active_requests.load(Relaxed));
                let share = active * u64::from(budget.share) / 100_000;
                Some(budget.minimum.max(u32::try_from(share).unwrap_or(u32::MAX)))
            }
            None if of.retries == 0 => None,
            None => Some(of.retries),
        };
        try_acquire(&self.active_retries, most).ok_or(CircuitBreakerLimit::Retries)
    }
}

/// Increments a counter, unless it has reached its limit.
fn try_acquire(count: &Arc<AtomicU32>, most: Option<u32>) -> Option<LimitPermit> {
    let before = count.fetch_add(1, Relaxed);
    // The slot is released when it is dropped, also if the limit is exceeded.
    let slot = LimitPermit(count.clone());
    most.is_none_or(|most| before < most).then_some(slot)
}
