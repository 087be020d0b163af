//! State of one endpoint for load balancing and outlier detection.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Instant,
};

use ambit_model::{ArcStr, Warmup};

use crate::locality::Topology;

/// Endpoint that can be picked, with its load-balancing attributes. `E` is the caller's endpoint type.
#[derive(Clone, Debug)]
pub struct EndpointCandidate<E> {
    /// Uid of the endpoint, the same on every replica.
    pub uid: ArcStr,
    /// Load-balancing weight of the endpoint, greater than zero.
    pub weight: u32,
    /// Locality, node, network and cluster of the endpoint.
    pub topology: Topology,
    /// Rank of the endpoint's locality for the service's own preference (`trafficDistribution`); higher is better.
    pub locality_rank: u32,
    /// Endpoint in the caller's type.
    pub endpoint: E,
}

/// State of an endpoint that remains when the policy or other endpoints change.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) uid: ArcStr,
    /// Time at which the endpoint was added, for slow start; `None` for endpoints of the first update.
    added_at: Option<Instant>,
    /// Number of active requests at the endpoint.
    pub(crate) active_requests: AtomicU32,
    pub(crate) is_ejected: AtomicBool,
    /// Number of consecutive 5xx responses.
    pub(crate) server_errors: AtomicU32,
    pub(crate) gateway_errors: AtomicU32,
    pub(crate) local_failures: AtomicU32,
}

impl Host {
    pub(crate) fn new(uid: ArcStr, joined: Option<Instant>) -> Arc<Self> {
        Arc::new(Self {
            uid,
            added_at: joined,
            active_requests: AtomicU32::default(),
            is_ejected: AtomicBool::default(),
            server_errors: AtomicU32::default(),
            gateway_errors: AtomicU32::default(),
            local_failures: AtomicU32::default(),
        })
    }

    pub(crate) fn is_ejected(&self) -> bool {
        self.is_ejected.load(Relaxed)
    }

    /// Returns the slow-start factor of the endpoint's weight, from 0 to 1.
    pub(crate) fn warmup_factor(&self, warmup: &Warmup, now: Instant) -> f64 {
        let Some(joined) = self.added_at else {
            return 1.0;
        };
        let age = now.saturating_duration_since(joined).as_secs_f64();
        let whole = warmup.duration.as_secs_f64();
        if age >= whole {
            return 1.0;
        }
        // As in Envoy, the first second counts in full.
        let passed = (age.max(1.0) / whole).min(1.0);
        let aggression = f64::from(warmup.aggression.max(1)) / 1000.0;
        let least = f64::from(warmup.minimum_percent.min(100)) / 100.0;
        passed.powf(1.0 / aggression).max(least)
    }
}

/// Sets a counter to zero. Reads it first: most counters are zero already, and a read does not invalidate other
/// threads' caches.
pub(crate) fn reset_counter(count: &AtomicU32) {
    if count.load(Relaxed) != 0 {
        count.store(0, Relaxed);
    }
}
